"""Which adversaries read which source: all of them the features, a few what stands beside them."""

from __future__ import annotations

from collections.abc import Mapping

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.table import (
    ADVERSARIES,
    AROUND_READER,
    BIT_READER,
    FEW_READER,
    WANTED_READER,
    Adversary,
)

ALONE = "alone: "
"""Begins the name of a source that is one included variable by itself."""

TOGETHER = "together: "
"""Begins the name of a source that is this release joined with an earlier one of its records."""

READS_BITS = "bit_reader"

READS_AROUND = "surroundings_reader"

KNOWS_WANTED = "knows_wanted"

READS_VARIABLE = "variable_reader"

_OWN = {
    READS_BITS: BIT_READER,
    READS_AROUND: AROUND_READER,
    KNOWS_WANTED: WANTED_READER,
    READS_VARIABLE: FEW_READER,
}

READERS = ("logistic", "least_squares", "boosting", "naive_bayes")
"""Adversaries that read everything together: the first that weighs columns, and the first that
sees more than weights."""


def choose_readers(source: str, is_categorical: bool, options: AttackOptions) -> tuple[str, ...]:
    """Names of the adversaries that attack a variable by a source.

    >>> choose_readers("bits", True, AttackOptions())
    ('bit_reader',)
    >>> choose_readers("surroundings", True, AttackOptions())
    ('surroundings_reader',)
    >>> choose_readers("everything", True, AttackOptions())
    ('logistic', 'boosting')
    >>> choose_readers("alone: place", True, AttackOptions())
    ('variable_reader',)
    >>> choose_readers("noise", True, AttackOptions())
    ('logistic', 'naive_bayes')
    """
    if source == "bits":
        return (READS_BITS,)
    if source == "surroundings":
        return (READS_AROUND,)
    if source == "wanted":
        return (KNOWS_WANTED,)
    if source.startswith(ALONE):
        return (READS_VARIABLE,)
    suited = tuple(n for n in options.adversaries if is_categorical or ADVERSARIES[n].numbers)
    if source not in ("everything", "joined", "noise") and not source.startswith(TOGETHER):
        return suited
    weighing = [name for name in READERS[:2] if name in suited][:1]
    # Noise fills every bin of every feature: trees take longest there, and it is a comparison.
    order = reversed(READERS[2:]) if source == "noise" else READERS[2:]
    dividing = [name for name in order if name in suited][:1]
    return (*weighing, *dividing) or suited[:1]


def find_adversary(name: str, known: Mapping[str, Adversary]) -> Adversary:
    """An adversary by its name; some are none that options can leave out."""
    return _OWN[name] if name in _OWN else known[name]
