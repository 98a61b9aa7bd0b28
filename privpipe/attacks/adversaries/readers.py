"""Which adversaries read which source: all of them the features, a few what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.bits import fit_bit_reader
from privpipe.attacks.adversaries.table import ADVERSARIES, Adversary
from privpipe.attacks.adversaries.wanted_answer import fit_wanted_answer

__all__ = ["KNOWS_WANTED", "choose_readers", "find_adversary"]

BIT_READER = "bit_reader"

KNOWS_WANTED = "knows_wanted"

_OWN = {
    BIT_READER: Adversary(fit_bit_reader, 20_000),
    KNOWS_WANTED: Adversary(fit_wanted_answer, 50_000),
}

READERS = ("logistic", "least_squares", "boosting", "naive_bayes")
"""Adversaries that read everything together: the first that weighs columns, and the first that
sees more than weights."""


def choose_readers(source: str, is_categorical: bool, options: AttackOptions) -> tuple[str, ...]:
    """Names of the adversaries that attack a variable by a source.

    >>> choose_readers("bits", True, AttackOptions())
    ('bit_reader',)
    >>> choose_readers("everything", True, AttackOptions())
    ('logistic', 'boosting')
    """
    if source == "bits":
        return (BIT_READER,)
    if source == "wanted":
        return (KNOWS_WANTED,)
    suited = tuple(n for n in options.adversaries if is_categorical or ADVERSARIES[n].numbers)
    if source not in ("everything", "joined"):
        return suited
    weighing = [name for name in READERS[:2] if name in suited][:1]
    dividing = [name for name in READERS[2:] if name in suited][:1]
    return (*weighing, *dividing) or suited[:1]


def find_adversary(name: str, known: Mapping[str, Adversary]) -> Adversary:
    """An adversary by its name; some are none that options can leave out."""
    return _OWN[name] if name in _OWN else known[name]
