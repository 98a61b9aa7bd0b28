"""Sentences of pages and messages are short enough to act on; those of before only become fewer."""

from __future__ import annotations

import json

from tests.sentences import EXCEPTIONS, find_long, is_long, list_messages, split_sentences

SHORT = (
    *("README.md", "docs/index.md", "docs/quickstart.md"),
    *(f"docs/howto/{name}.md" for name in ("audit_others", "choose_a_budget", "choose_a_method")),
    *(f"docs/howto/{name}.md" for name in ("read_a_report", "schedule")),
)
"""Pages where a newcomer begins: no exception is stored for them."""


def test_sentences__of_no_file_has_more_long_ones_than_before() -> None:
    known = json.loads(EXCEPTIONS.read_text())
    more = {
        name: said[known.get(name, 0) :]
        for name, said in find_long().items()
        if len(said) > known.get(name, 0)
    }
    assert more == {}, "at most 25 words and 3 numbers; `python -m tests.sentences` lists them"
    assert not set(SHORT) & set(known)


def test_sentences__that_are_long_are_found() -> None:
    assert is_long("word " * 26)
    assert not is_long("word " * 25)
    assert is_long("From 1 to 2, 3 or 4.")
    assert not is_long("`a b c` " * 20)
    said = split_sentences("One; two:\nthree. Four\n\nFive e.g. six.")
    assert [one.strip() for one in said] == ["One; two: three", "Four", "Five e.g. six"]


def test_messages__are_read_with_what_is_filled_in() -> None:
    source = 'raise InputError(f"{n} are {m} few.", remedy="Take more.", code="few")'
    assert list(list_messages(source)) == ["x are x few.", "Take more."]
