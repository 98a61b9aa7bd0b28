"""The kinds of attack by name: what each asks, what it must be given, and how it is run.

Configuration, gate and report list the rows and name none of them. A new kind is a module with a
function of a `Sample` and the options, and one row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.errors import InputError
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Sample:
    """What an audit knows of a release; None where it does not know it. Rows are records.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees; of a surrogate release its records, which are nobody's.
    confidential : (n_records, n_columns)
        What must not be guessed.
    raw : (n_records, n_features)
        The records before the release, row by row.
    codes : (n_records, n_attributes)
        Released attributes as codes.
    classes : (n_records, n_columns)
        Confidential categorical variables as codes.
    members, others : (n, n_features_released)
        Records that a surrogate release was made from, and records of the same population that
        it was not, in the columns of the release.
    signs : (n_members, n_released)
        P, by which a surrogate release was made of its members, if somebody kept it.
    surrogate_responses : (n_released, n_responses)
        The responses of a surrogate release, which hold its regression model.
    member_responses : (n_members, n_responses)
        Those of the members.
    gram : (n_columns, n_columns)
        Sums of products of [features, responses] of all records of a surrogate release's model.
    earlier : two arrays (n, n_features_released), (n, n_responses)
        Features and responses of an earlier surrogate release of nearly the same records.
    noise : (n_records, any)
        The records with noise of equal utility.
    neighbours : two arrays (n_releases, n_features_released)
        Independent releases of one record, and of another.
    learned, fresh : (n, any)
        Records that the model of a release learned from, and records of the same population that
        it did not: what it makes of them, and what they cost it.
    published, judged : (n, n_features_released)
        Records of a release, and the released records that judged it.
    attributes
        Names of the released attributes.
    columns
        Name and kind of each confidential column.
    groups : (n_records,)
        Subject of each record.
    seen : (n_records,)
        True for records the sanitiser learned from.
    auxiliary
        What is released beside the features.
    desired
        The true wanted answers, as included variables are given.
    """

    released: FloatArray | None = None
    confidential: FloatArray | None = None
    raw: FloatArray | None = None
    codes: IntArray | None = None
    classes: IntArray | None = None
    members: FloatArray | None = None
    others: FloatArray | None = None
    signs: FloatArray | None = None
    surrogate_responses: FloatArray | None = None
    member_responses: FloatArray | None = None
    gram: FloatArray | None = None
    earlier: tuple[FloatArray, FloatArray] | None = None
    noise: FloatArray | None = None
    neighbours: tuple[FloatArray, FloatArray] | None = None
    learned: FloatArray | None = None
    fresh: FloatArray | None = None
    published: FloatArray | None = None
    judged: FloatArray | None = None
    attributes: Sequence[str] = ()
    columns: Sequence[Column] | None = None
    groups: IntArray | None = None
    seen: BoolArray | None = None
    auxiliary: Auxiliary | None = None
    desired: Auxiliary | None = None


class SaysJson(Protocol):
    """What every kind of attack reports: numbers about records, no value of one."""

    def to_json(self) -> str:
        """The report as JSON."""
        ...


@dataclass(frozen=True)
class AttackKind:
    """One row of the table of attacks.

    Parameters
    ----------
    name
        In configurations and reports.
    asks
        The question it answers, for a report.
    needs
        Fields of a `Sample` that it cannot do without.
    run
        ``run(sample, options)``; a report.
    """

    name: str
    asks: str
    needs: tuple[str, ...]
    run: Callable[[Sample, AttackOptions], SaysJson]


def _load(module: str, name: str = "attack") -> Callable[[Sample, AttackOptions], SaysJson]:
    """A function of a module of this room, imported when it is called: scikit-learn is slow."""

    def run(sample: Sample, options: AttackOptions) -> SaysJson:
        function = getattr(import_module(f"{__package__}.{module}"), name)
        found: SaysJson = function(sample, options)
        return found

    return run


_ROWS = (
    AttackKind(
        "inference",
        "Can a confidential variable be guessed from a released record?",
        ("released", "confidential"),
        _load("inference"),
    ),
    AttackKind(
        "linkage",
        "Can the release of a known record be found?",
        ("released", "raw"),
        _load("linkage"),
    ),
    AttackKind(
        "reconstruction",
        "How much of a raw record can be rebuilt from its release?",
        ("released", "raw"),
        _load("reconstruction"),
    ),
    AttackKind(
        "membership",
        "Can be told whether a record was among those a surrogate release was made from?",
        ("released", "members", "others"),
        _load("membership"),
    ),
    AttackKind(
        "tracing",
        "Can be told by second moments whether a record is among those of signed sums?",
        ("released", "members", "others"),
        _load("signed_sums", "attack_tracing"),
    ),
    AttackKind(
        "known_signs",
        "Are the records of signed sums solved for by whoever kept the signs?",
        ("released", "members", "others", "signs"),
        _load("signed_sums", "attack_known_signs"),
    ),
    AttackKind(
        "all_but_one",
        "Is a record solved for from exact coefficients by whoever knows all others?",
        ("released", "surrogate_responses", "members", "member_responses", "others", "gram"),
        _load("exact_coefficients", "attack_all_but_one"),
    ),
    AttackKind(
        "with_and_without",
        "Is a record solved for by whoever has this release and one without that record?",
        ("released", "surrogate_responses", "members", "member_responses", "others", "gram"),
        _load("exact_coefficients", "attack_with_and_without"),
    ),
    AttackKind(
        "two_releases",
        "Is the record by which this release differs from an earlier one solved for?",
        ("released", "surrogate_responses", "members", "others", "earlier"),
        _load("exact_coefficients", "attack_two_releases"),
    ),
    AttackKind(
        "independent_components",
        "Are signed sums unmixed into the records they are made of?",
        ("released", "members", "others"),
        _load("signed_sums", "attack_independent_components"),
    ),
    AttackKind(
        "outlying_record",
        "Are the farthest records read off the strongest directions of signed sums?",
        ("released", "members", "others"),
        _load("signed_sums", "attack_outlying_record"),
    ),
    AttackKind(
        "neighbours",
        "Are the releases of one record told from those of another beyond the promised epsilon?",
        ("neighbours",),
        _load("neighbours"),
    ),
    AttackKind(
        "training_membership",
        "Can be told whether a record was among those the published model learned from?",
        ("learned", "fresh"),
        _load("two_samples"),
    ),
    AttackKind(
        "drift",
        "Do the records of the release differ from those that judged it?",
        ("published", "judged"),
        _load("two_samples"),
    ),
    AttackKind(
        "information",
        "How much do released codes tell of confidential classes, in nats?",
        ("codes", "classes"),
        _load("information"),
    ),
)

ATTACKS: dict[str, AttackKind] = {row.name: row for row in _ROWS}
"""Every kind of attack by its name."""


def list_missing(kind: AttackKind, sample: Sample) -> list[str]:
    """What a kind needs and a sample does not have."""
    return [name for name in kind.needs if getattr(sample, name) is None]


def list_possible(sample: Sample) -> tuple[str, ...]:
    """Kinds of attack that a sample has all the needs of."""
    return tuple(name for name, kind in ATTACKS.items() if not list_missing(kind, sample))


def run_kind(name: str, sample: Sample, options: AttackOptions | None = None) -> SaysJson:
    """Run a kind of attack.

    Raises
    ------
    InputError
        If there is no such kind, or the sample has not what it needs; else as the kind says.

    Examples
    --------
    >>> import numpy as np
    >>> codes = np.arange(400).reshape(-1, 1) % 4
    >>> report: Any = run_kind("information", Sample(codes=codes, classes=codes // 2))
    >>> round(report.rows[0].plug_in, 4)
    0.6931
    """
    if name not in ATTACKS:
        raise InputError(
            f"There is no kind of attack {name!r}.", remedy=f"Use one of: {', '.join(ATTACKS)}."
        )
    missing = list_missing(ATTACKS[name], sample)
    if missing:
        raise InputError(
            f"An attack by {name} needs {', '.join(missing)}.",
            remedy=f"Give them, or use one of: {', '.join(list_possible(sample)) or 'none'}.",
        )
    return ATTACKS[name].run(sample, options or AttackOptions())
