"""Attacks beside inference by name: what each needs, and where its function is.

Stages and reports list the rows and name no row; what a run measures of a release follows
from what each row needs. A new attack is a module and one row of ``attack_table.toml``. The module
has a function of the arrays that it needs and the options, whose outcome is a value with `to_json`.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Protocol, cast

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
        Records that the model of a release learned from, and records of the same population that it
        did not. Columns are what it makes of them, and what they cost it.
    published, judged : (n, n_features_released)
        Records of a release, and the released records that judged it.
    attributes
        Names of the released attributes.
    columns
        Name and kind of each confidential column.
    groups : (n_records,)
        Subject of each record.
    included : (n_records, n_included)
        Variables that are released as recorded, as numbers or codes.
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
    included: FloatArray | None = None


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
    needs: Sequence[str]
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
        return cast(SaysJson, function(**given, options=options))

    def list_missing(self, sample: Sample) -> list[str]:
        """What it needs and a sample does not have."""
        return [name for name in self.needs if getattr(sample, name) is None]


_TABLE = tomllib.loads(Path(__file__).with_name("attack_table.toml").read_text("utf-8"))

ATTACKS = {name: AttackRow(name, **row) for name, row in _TABLE.items()}
"""Every attack by its name, but for inference: its adversaries and sources are planned in
`inference.plan_attacks`."""

RECORD_ATTACKS = {row.name: row.finds for row in ATTACKS.values() if row.finds}
"""What each attack of an outsider on a surrogate release would find. Signs are not among what is
known: P is destroyed, and whoever has it has the records; the report says so."""

CLOSED_FORMS = {row.name: row.knower for row in ATTACKS.values() if row.knower}
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
        problem = f"There is no attack {name!r}."
        raise InputError(problem, remedy=f"Use one of: {', '.join(ATTACKS)}.")
    if missing := ATTACKS[name].list_missing(sample):
        remedy = f"Give them, or use one of: {', '.join(list_possible(sample)) or 'none'}."
        raise InputError(f"An attack by {name} needs {', '.join(missing)}.", remedy=remedy)
    return ATTACKS[name].run(sample, options)
