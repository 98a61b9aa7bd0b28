"""Names and prose use the words of the field: none of the list is left, planted ones are found."""

from __future__ import annotations

import pytest

from tests.words import IN_NAMES, ROOT, find_in_module, find_in_page, find_words


def test_words__none_of_our_own_is_left() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path, hits in find_words().items()
        for line, word in hits
    }
    assert found == set(), "see tests/words.py for the field's word"


@pytest.mark.parametrize("name", sorted(IN_NAMES))
def test_words__are_found_in_names(name: str) -> None:
    hits = list(find_in_module(f"def {name}_figure(values):\n    return values\n"))
    assert hits == [(1, name)]


@pytest.mark.parametrize(
    "text", ['"""What nobody knows."""', "x = 1  # it is kept", 'raise E(f"{n} are wanted")']
)
def test_words__are_found_in_prose(text: str) -> None:
    assert len(list(find_in_module(f"{text}\n"))) == 1


def test_words__of_a_page_are_found_outside_code_marks() -> None:
    assert list(find_in_page("A run goes on where it stopped; `kept` is a key.")) == ["goes on"]


def test_words__that_are_the_fields_own_are_none() -> None:
    assert list(find_in_module("n_hidden_units = line_search(x)\n")) == []
