"""Words of our own that a newcomer would not search for, and the field's words for them.

A word counts in prose (docstrings, comments, messages, pages) or in a name, as a part of it.
"""

from __future__ import annotations

import io
import json
import re
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent

IN_PROSE = {
    r"told|tells?": "reported, reveals, says",
    r"telling": "leakage",
    r"nobody": "no one",
    r"none of them": "none",
    r"kept": "retained, checkpointed, stored",
    r"wanted": "target",
    r"go(es)? on": "resumes, continues",
    r"ways? out": "remedy",
    r"doubt": "error bound",
    r"stands?": "is stored, is",
    r"patience": "time limit",
    r"(lose|loses|lost) epsilon": "consume budget",
    r"kinds? of attacks?": "attack",
    r"hidden (variable|attribute|value)s?": "confidential",
    r"ask(s|ed)?": "request, query, require",
}
IN_NAMES = {
    "told": "reported",
    "tell": "report",
    "tells": "reports",
    "telling": "leakage",
    "nobody": "no_one",
    "kept": "retained, stored",
    "wanted": "target",
    "doubt": "error_bound",
    "patience": "time_limit",
    "hidden": "confidential (hidden_units of a network are the field's)",
    "beside": "auxiliary",
    "beyond": "gain over the target",
    "together": "joint",
    "reach": "detectable_effect",
    "own": "custom",
    "ending": "exit_summary",
    "scope": "record_range",
    "answers": "responses",
    "readers": "set_statistics",
    "asked": "required",
    "asks": "requires",
    "line": "ordered (an alphabet), history (generations); of text it is a line",
}
ALLOWED = re.compile(
    r"line_search|^wanted_information$|hidden_(units?|layers?|size)|^n_hidden$|^scope$"
    r"|(^|_)line(s|no|width)?_?(of_text)?$"
)
"""Names that are the field's own; `scope` of a guarantee is also stored, in models and headers;
`wanted_information` is a key that users write."""

PROSE = re.compile(rf"\b({'|'.join(IN_PROSE)})\b", re.IGNORECASE)


def read_pages() -> Iterator[tuple[Path, str]]:
    """Pages for people; CHANGELOG, which is history, aside."""
    # Pages that `make docs` writes are made of messages and names, which are read where they are.
    made = {*ROOT.glob("docs/methods/*.md"), *ROOT.glob("docs/reference/*.md")}
    made -= {ROOT / "docs/reference/formats.md"}
    for folder in ("docs", "deploy", "privpipe"):
        pages = sorted({*(ROOT / folder).rglob("*.md")} - made)
        yield from ((path, path.read_text()) for path in pages)
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        yield ROOT / name, (ROOT / name).read_text()
    for path in sorted((ROOT / "privpipe").rglob("*.j2")):
        yield path, path.read_text()
    for path in list_data():
        yield path, "\n\n".join(read_texts(path))


def list_data() -> list[Path]:
    """Files of data that hold texts for people; errors.json is made of modules."""
    names = (
        path for end in ("toml", "yaml", "json") for path in (ROOT / "privpipe").rglob(f"*.{end}")
    )
    return sorted(path for path in names if path.name not in ("errors.json", "demo.toml"))


def read_texts(path: Path) -> Iterator[str]:
    """Values with a blank in them, as they are; keys are none."""
    text = path.read_text()
    read: Any = {".toml": tomllib.loads, ".yaml": yaml.safe_load, ".json": json.loads}[path.suffix]
    found = [read(text)]
    while found:
        one = found.pop(0)
        if isinstance(one, str) and " " in one:
            yield one
        elif isinstance(one, dict | list):
            found[:0] = one.values() if isinstance(one, dict) else one


def find_in_page(text: str) -> Iterator[str]:
    """Words in prose; what stands in code marks aside."""
    yield from (hit.group().lower() for hit in PROSE.finditer(re.sub(r"`[^`]*`", "", text)))


def find_in_module(text: str) -> Iterator[tuple[int, str]]:
    """Line and word, in strings, comments and names of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            # A string without a blank is a key or a name, which files may hold.
            if " " in token.string.strip("\"'"):
                prose = re.sub(r"`[^`]*`", "", token.string)
                for hit in PROSE.finditer(prose):
                    yield token.start[0] + prose[: hit.start()].count("\n"), hit.group().lower()
        elif token.type == tokenize.NAME and not ALLOWED.search(token.string):
            parts = re.findall(r"[A-Z]?[a-z]+", token.string)
            yield from (
                (token.start[0], part.lower()) for part in parts if part.lower() in IN_NAMES
            )


def find_words() -> dict[Path, list[tuple[int, str]]]:
    """All of them, by file."""
    found: dict[Path, list[tuple[int, str]]] = {}
    for folder in ("privpipe", "flows", "docs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            hits = list(find_in_module(path.read_text()))
            hits += [(0, part) for part in path.stem.split("_") if part in IN_NAMES]
            found[path] = hits
    for path, text in read_pages():
        found[path] = [(0, word) for word in find_in_page(text)]
    return {path: hits for path, hits in found.items() if hits}


def main() -> None:
    """Each hit, then how many a folder and a word has."""
    found = find_words()
    for path, hits in found.items():
        for line, word in hits:
            print(f"{path.relative_to(ROOT)}:{line}: {word}")
    by_word = Counter(word for hits in found.values() for _, word in hits)
    print(*(f"{count:5d} {word}" for word, count in by_word.most_common()), sep="\n")


if __name__ == "__main__":
    main()
