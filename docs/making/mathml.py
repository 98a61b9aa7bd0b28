"""Formulae as MathML, which browsers draw themselves; MathJax would be fetched from elsewhere."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml

__all__ = ["setup"]


def _write(latex: str, display: bool) -> str:
    tree = latex2mathml.tex2mathml(latex, as_block=display)
    return str(tree)


def visit_inline(translator: Any, node: nodes.math) -> None:
    """A formula in a line."""
    translator.body.append(_write(node.astext(), False))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.math_block) -> None:
    """A formula of its own."""
    translator.body.append(f'<div class="math">{_write(node.astext(), True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
