"""Pages made from the code: what lands there appears here by itself."""

from __future__ import annotations

import inspect
from pathlib import Path

import privpipe
from docs.making.commands import write_commands
from docs.making.configuration import write_configuration
from docs.making.method_pages import write_method_pages
from privpipe.command.error_catalog import EXIT_CODES, read_catalog

__all__ = ["write_pages"]


def write_pages(folder: Path) -> None:
    """Write every generated page below a folder; a page that did not change is left alone."""
    pages = {
        "reference/python.md": write_public_names(),
        "reference/commands.md": write_commands(),
        "reference/configuration.md": write_configuration(),
        "reference/errors.md": write_errors(),
        **write_method_pages(folder / "methods" / "bodies"),
    }
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def write_public_names() -> str:
    """Every public name with its docstring, functions after classes."""
    names = [name for name in privpipe.__all__ if name != "__version__"]
    kinds = {name: inspect.isclass(getattr(privpipe, name)) for name in names}
    lines = [
        "# Public names",
        "",
        "All that is public is in `privpipe` itself, and in `privpipe.sklearn`. Anything else may "
        "change without notice; what is public changes as the "
        "[policy of deprecation](../explanation/deprecation.md) says. `privpipe.__version__` is "
        "the version.",
        "",
    ]
    for title, are_classes in (("Functions", False), ("Classes", True)):
        lines += [f"## {title}", ""]
        for name in names:
            if kinds[name] is are_classes:
                lines += _write_name(name, are_classes)
    lines += ["## scikit-learn", "", "```{eval-rst}", ".. automodule:: privpipe.sklearn"]
    return "\n".join([*lines, "   :members:", "```", ""])


def _write_name(name: str, is_class: bool) -> list[str]:
    directive = "autoclass" if is_class else "autofunction"
    lines = [f"### {name}", "", "```{eval-rst}", f".. {directive}:: privpipe.{name}"]
    if is_class:
        lines += ["   :members:", "   :exclude-members: __init__, __new__"]
    return [*lines, "```", ""]


def write_errors() -> str:
    """Every code: what is said where it is raised, and the remedy."""
    lines = [
        "# Error codes",
        "",
        "A command that fails says `error[CODE]`, what is wrong, and the remedy; with `--json` "
        "the code is a key of the answer. `privpipe explain CODE` prints the same. Angle "
        "brackets hold what a message fills in; it is never a value of a record.",
        "",
        "| exit code | about |",
        "|---|---|",
        *(f"| {code} | {about} |" for code, about in EXIT_CODES.items()),
        "",
    ]
    for code, situations in read_catalog().items():
        lines += [f"## `{code}`", ""]
        for one in situations:
            kind = "" if one.kind == "none" else f", `{one.kind}`"
            lines += [f"- {_escape(one.message)} *(exit code {one.exit_code}{kind})*"]
            if one.remedy:
                lines += ["", f"  → {_escape(one.remedy)}"]
            lines += [""]
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Plain text as Markdown, backticks as code."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for sign in "\\*_[]<>$|#":
            parts[i] = parts[i].replace(sign, f"\\{sign}")
    return "`".join(parts) if len(parts) % 2 else "\\`".join(parts)
