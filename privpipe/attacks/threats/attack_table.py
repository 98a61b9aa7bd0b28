"""Attacks beside inference by name: what each needs, and where its function is.

Stages and reports list the rows and name no row; what a run measures of a release follows
from what each row needs. A new attack is a module with a function of the arrays
that it needs and the options, whose outcome is a value with `to_json`, and one row here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from inspect import signature
from typing import Protocol

from privpipe.attacks.adversaries.attack_options import USUAL, AttackOptions
from privpipe.errors import InputError
from privpipe.protocols import Column, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Sample:
    """What an audit knows of a release; None where it does not know it. Rows are records.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees; of a surrogate release its records, which belong to no person.
    raw : (n_records, n_features)
        The records before the release, row by row.
    codes : (n_records, n_attributes)
        Released attributes as codes.
    classes : (n_records, n_columns)
        Confidential categorical variables as codes.
    members, others : (n, n_features_released)
        Records that a surrogate release was made from, and records of the same population that
        it was not, in the columns of the release.
    surrogate_responses : (n_released, n_responses)
        The responses of a surrogate release, which hold its regression model.
    member_responses : (n_members, n_responses)
        Those of the members.
    gram : (n_columns, n_columns)
        Sums of products of [features, responses] of all records of a surrogate release's model.
    earlier : two arrays (n, n_features_released), (n, n_responses)
        Features and responses of an earlier surrogate release of nearly the same records.
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
    """

    released: FloatArray | None = None
    raw: FloatArray | None = None
    codes: IntArray | None = None
    classes: IntArray | None = None
    members: FloatArray | None = None
    others: FloatArray | None = None
    surrogate_responses: FloatArray | None = None
    member_responses: FloatArray | None = None
    gram: FloatArray | None = None
    earlier: tuple[FloatArray, FloatArray] | None = None
    learned: FloatArray | None = None
    fresh: FloatArray | None = None
    published: FloatArray | None = None
    judged: FloatArray | None = None
    attributes: Sequence[str] | None = None
    columns: Sequence[Column] | None = None
    groups: IntArray | None = None


class SaysJson(Protocol):
    """What every attack reports: numbers about records, no value of one."""

    def to_json(self) -> str:
        """The report as JSON."""
        ...


@dataclass(frozen=True)
class AttackRow:
    """One row of the table of attacks.

    Parameters
    ----------
    name
        In configurations and reports.
    place
        ``module:function`` in this folder. Its keywords are fields of a `Sample`, and `options`.
    needs
        Fields of a `Sample` that it cannot do without.
    finds
        What it would find of the single records of a surrogate release, for those by outsiders.
    knower
        Who can make it, for those that no number of surrogates hinders.
    """

    name: str
    place: str
    needs: tuple[str, ...]
    finds: str = ""
    knower: str = ""

    def run(self, sample: Sample, options: AttackOptions) -> SaysJson:
        """The report of the attack on a sample that has what it needs."""
        # Imported here and not above: scikit-learn loads for seconds, and most processes list rows.
        module, _, name = self.place.partition(":")
        function = getattr(import_module(f"{__package__}.{module}"), name)
        # What a function accepts is in its signature: a row does not say it twice.
        known = {one.name: getattr(sample, one.name) for one in fields(Sample)}
        accepted = signature(function).parameters
        given = {k: value for k, value in known.items() if k in accepted and value is not None}
        report: SaysJson = function(**given, options=options)
        return report

    def list_missing(self, sample: Sample) -> list[str]:
        """What it needs and a sample does not have."""
        return [name for name in self.needs if getattr(sample, name) is None]


def _of_records(key: str, data: tuple[str, ...], *, finds: str = "", knower: str = "") -> AttackRow:
    """An attack on single records of a surrogate release, under its name in `record_recovery`."""
    return AttackRow(key, f"record_recovery:attack_{key}", data, finds, knower)


_PAIRS = ("released", "raw")
_SIDES = ("released", "members", "others")
_MODEL = ("surrogate_responses", "member_responses", "gram")
_ROWS = (
    # Can the release of a known record be found?
    AttackRow("linkage", "linkage_reconstruction:measure_linkage", _PAIRS),
    # How much of a raw record can be rebuilt from its release?
    AttackRow("reconstruction", "linkage_reconstruction:measure_reconstruction", _PAIRS),
    # Can it be decided whether a record was among those the published model learned from?
    AttackRow("training_membership", "two_samples:attack_training", ("learned", "fresh")),
    # How much do released codes reveal of confidential classes, in nats?
    AttackRow("information", "information:measure_information", ("codes", "classes")),
    # Do the records of the release differ from those that judged it?
    AttackRow("drift", "two_samples:attack_drift", ("published", "judged")),
    # Can it be decided whether a surrogate release was made from a record?
    AttackRow(
        "membership",
        "membership:attack_nearest",
        _SIDES,
        finds="whether a record is in, by the nearest surrogate",
    ),
    # The same by second moments, of signed sums.
    _of_records("tracing", _SIDES, finds="whether a record is in, by second moments"),
    # Are signed sums unmixed into the records they are made of?
    _of_records("independent_components", _SIDES, finds="a record, by independent components"),
    # Are the farthest records read off the strongest directions of signed sums?
    _of_records(
        "outlying_record", _SIDES, finds="the farthest records, by the strongest directions"
    ),
    # Is a record solved for from exact coefficients by whoever knows all others?
    _of_records("all_but_one", (*_SIDES, *_MODEL), knower="by whoever knows all others"),
    # Is a record solved for by whoever has this release and one without that record?
    _of_records(
        "with_and_without",
        (*_SIDES, *_MODEL),
        knower="by whoever has this release and one without the record",
    ),
    # Is the record by which this release differs from an earlier one solved for?
    _of_records("two_releases", (*_SIDES, "surrogate_responses", "earlier")),
)

ATTACKS: dict[str, AttackRow] = {row.name: row for row in _ROWS}
"""Every attack by its name, but for inference: its adversaries and sources are planned in
`inference.plan_attacks`."""

RECORD_ATTACKS = {row.name: row.finds for row in _ROWS if row.finds}
"""What each attack of an outsider on a surrogate release would find. Signs are not among what is
known: P is destroyed, and whoever has it has the records; the report says so."""

CLOSED_FORMS = {row.name: row.knower for row in _ROWS if row.knower}
"""Attacks that no number of surrogates hinders, and who makes them."""


def list_possible(sample: Sample) -> tuple[str, ...]:
    """Attacks that a sample has all the needs of."""
    return tuple(name for name, row in ATTACKS.items() if not row.list_missing(sample))


def run_by_name(name: str, sample: Sample, options: AttackOptions = USUAL) -> SaysJson:
    """Run an attack.

    Raises
    ------
    InputError
        If there is no such attack, or the sample has not what it needs; else as the attack says.

    Examples
    --------
    >>> import numpy as np
    >>> codes = np.arange(400).reshape(-1, 1) % 4
    >>> report = run_by_name("information", Sample(codes=codes, classes=codes // 2))
    >>> round(report.rows[0].plug_in, 4)
    0.6931
    """
    if name not in ATTACKS:
        raise InputError(
            f"There is no attack {name!r}.", remedy=f"Use one of: {', '.join(ATTACKS)}."
        )
    if missing := ATTACKS[name].list_missing(sample):
        raise InputError(
            f"An attack by {name} needs {', '.join(missing)}.",
            remedy=f"Give them, or use one of: {', '.join(list_possible(sample)) or 'none'}.",
        )
    return ATTACKS[name].run(sample, options)
