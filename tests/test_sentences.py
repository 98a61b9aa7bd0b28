"""Sentences of pages and messages are short enough to act on."""

from __future__ import annotations

from tests.sentences import find_long, is_long, list_messages, split_sentences


def test_sentences__of_no_page_or_message_are_long() -> None:
    assert find_long() == {}, "at most 25 words, 3 numbers: `python -m tests.sentences`"


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
