"""Sentences of pages and messages are short enough to act on."""

from __future__ import annotations

import pytest

from tests.sentences import (
    drop_template,
    find_long,
    is_long,
    list_docstrings,
    list_messages,
    split_sentences,
)


def test_sentences__of_no_page_message_or_docstring_are_long() -> None:
    assert find_long() == {}, "at most 25 words, 3 numbers: `python -m tests.sentences`"


def test_sentences__that_are_long_are_found() -> None:
    assert is_long("word " * 26)
    assert not is_long("word " * 25)
    assert is_long("From 1 to 2, 3 or 4.")
    assert not is_long("`a b c` " * 20)
    assert len(split_sentences("It is categorical. Drop it.")) == 2
    said = split_sentences("One; two:\nthree. Four\n\nFive e.g. six.")
    assert [one.strip() for one in said] == ["One; two: three", "Four", "Five e.g. six"]


@pytest.mark.parametrize(
    "source",
    [
        'raise InputError(f"{n} are {m} few.", remedy="Take more.", code="few")',
        'def f():\n    "A docstring."\n    return f"{n} are {m} few.", "Take more."',
    ],
)
def test_messages__are_read_with_what_is_filled_in(source: str) -> None:
    assert sorted(list_messages(source)) == ["Take more.", "x are x few."]


def test_templates__are_read_without_their_conditions() -> None:
    text = "{{ n | count }} are few.{% if more %} Take {{ more }} more{% endif %}."
    said = [one.split() for one in split_sentences(drop_template(text))]
    assert said == [["x", "are", "few"], ["Take", "x", "more"]]


DOCUMENTED = """
def f(x):
    \'\'\'One thing
    on two lines.

    Parameters
    ----------
    x
        A number; of more than nothing.

    References
    ----------
    Somebody 2004, With a long title.

    Examples
    --------
    >>> f(1)
    2
    \'\'\'


MOST = 3
"Of a constant."
"""


def test_docstrings__are_read_without_citations_examples_and_names() -> None:
    said = [one for text in list_docstrings(DOCUMENTED) for one in split_sentences(text)]
    assert sorted(" ".join(one.split()) for one in said) == [
        "A number; of more than nothing",
        "Of a constant",
        "One thing on two lines",
    ]
    long = DOCUMENTED.replace("of more", "word " * 26)
    assert any(is_long(one) for text in list_docstrings(long) for one in split_sentences(text))
    assert not is_long("At most ``1 2 3 4 5 6`` of it.")
