"""Sentences that are too long to act on: of more than 25 words, or of more than 3 numbers.

``python -m tests.sentences`` lists each; there is to be none.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections.abc import Iterator

from tests.words import ROOT, list_data, read_pages, read_texts

MOST_WORDS, MOST_NUMBERS = 25, 3

# Ends of sentences; "e.g." and "Xu et al." end none.
_END = re.compile(r"(?<!\bal)(?<!e\.g)(?<!i\.e)[.!?](?=\s|$)")


def split_sentences(text: str) -> list[str]:
    """Sentences, each on one line; a semicolon ends none."""
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*[-*|] )|\n(?=\s*\d+\. )", text)
    return [one for each in paragraphs for one in _END.split(" ".join(each.split())) if one.strip()]


def is_long(sentence: str) -> bool:
    """Whether a reader would lose it; code, links and formulas count as one word."""
    plain = re.sub(r"``.+?``|`[^`]*`|\$[^$]*\$|\{[^}]*\}|\]\([^)]*\)", " x ", sentence)
    # A moment, an address or a version is one number.
    plain = re.sub(r"\d[\d.:+TZ-]*\d[\d.:+TZ-]*", "0", plain)
    words = re.findall(r"[^\W\d_][\w'-]*", plain)
    numbers = re.findall(r"(?<![\w.])\.?\d[\d.,]*", plain)
    return len(words) > MOST_WORDS or len(numbers) > MOST_NUMBERS


def _drop_code(text: str) -> str:
    """A page without programs, tables, headings, directives and comments."""
    text = re.sub(r"(?ms)^(```+|~~~|:::+).*?^\1", "\n\n", text)
    return re.sub(r"(?m)^\s*(\||#|!\[|:|<|>).*$", "\n", text)


def drop_template(text: str) -> str:
    """What a template says by itself: a condition ends a sentence; a table of codes is none."""
    text = re.sub(r"(?m)^ +\{\{ call \}\}.*$", "\n\n", text)  # a command to type
    text = re.sub(r"(?s)\{\{.*?\}\}", " x ", text)
    return re.sub(r"(?s)\{[%#].*?[%#]\}|^Exit codes:.*?interrupted\.", "\n\n", text)


def list_messages(source: str) -> Iterator[str]:
    """All texts of a module but docstrings and citations, what is filled in as x."""
    tree = ast.parse(source)
    aside = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr | ast.JoinedStr):
            aside |= {*ast.iter_child_nodes(node)}
        elif isinstance(node, ast.keyword) and node.arg == "source":
            aside.add(node.value)
    for node in ast.walk(tree):
        if node in aside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Style sheets and patterns have no two words side by side.
            yield from [node.value] if re.search("[a-z]{2} [a-z]", node.value) else []
        elif isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values
            )


def list_docstrings(source: str) -> Iterator[str]:
    """Docstrings and texts below constants, without citations, examples and names of parameters."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            text = inspect.cleandoc(node.value.value)
            text = re.sub(r"(?ms)^References\n---+\n.*?(?=^\w+\n---+$|\Z)", "\n\n", text)
            text = re.sub(r"(?ms)^\s*>>>.*?(?=^\s*$|\Z)", "\n\n", text)
            # A heading or a name above what is indented, an item of a list, a formula by itself.
            text = re.sub(r"(?m)^\S.*\n-+$|^(\s*)\S.*(?=\n\1 {4}\S)", "\n\n", text)
            yield re.sub(r"(?m)^ {4,}(?=\S+( \S+)? [=<>] )|^(?=\s*- )", "\n\n", text)


def find_long() -> dict[str, list[str]]:
    """Long sentences by file: of pages for people, and of what modules say."""
    found: dict[str, list[str]] = {}
    for path, text in read_pages():
        prose = _drop_code(text) if path.suffix == ".md" else ""
        found[str(path.relative_to(ROOT))] = [s for s in split_sentences(prose) if is_long(s)]
    for path in sorted((ROOT / "privpipe").rglob("*.py")):
        source = path.read_text()
        texts = itertools.chain(list_messages(source), list_docstrings(source))
        said = (s for text in texts for s in split_sentences(text))
        found[str(path.relative_to(ROOT))] = [s for s in said if is_long(s)]
    for path in list_data():
        said = (s for text in read_texts(path) for s in split_sentences(drop_template(text)))
        found[str(path.relative_to(ROOT))] = [s for s in said if is_long(s)]
    return {name: said for name, said in found.items() if said}


def main() -> None:
    """List them."""
    found = find_long()
    for name, said in found.items():
        print(*(f"{name}: {one.strip()}" for one in said), sep="\n")
    print(f"{sum(map(len, found.values()))} in {len(found)} files")


if __name__ == "__main__":
    main()
