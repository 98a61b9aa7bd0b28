"""What all attacks of one audit share: sampled records, standardised, and coded targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.attacks.codes import code_column, code_targets, expand_codes
from privpipe.attacks.coordinates import Coordinates, measure_coordinates
from privpipe.attacks.options import AttackOptions
from privpipe.errors import InputError
from privpipe.numerics.finite import find_empty_rows
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray

__all__ = ["Evidence", "prepare_evidence"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Prepared arrays of an audit; attacks read it and change nothing.

    Parameters
    ----------
    sources
        What is attacked, by name: "released", and where given "raw" and "noise".
    columns
        The confidential variables; categorical ones with the classes left in the sample.
    truth : (n_records, n_columns)
        Their codes or numbers, NaN where missing.
    groups : (n_records,), optional
        Subject of each record.
    train_only : (n_records,), optional
        True for records that may not test an adversary; see `AttackOptions.seen_records`.
    n_given, n_withheld, n_seen
        Records given, left out because the release withholds them (a row of NaN), and left
        out of test, or altogether, because the sanitiser learned from them.
    """

    sources: dict[str, Coordinates]
    columns: tuple[Column, ...]
    truth: FloatArray
    groups: IntArray | None
    train_only: BoolArray | None
    n_given: int
    n_withheld: int
    n_seen: int

    @property
    def n_records(self) -> int:
        return len(self.truth)

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return self.truth.nbytes + sum(source.values.nbytes for source in self.sources.values())

    def counts(self) -> dict[str, int]:
        """The numbers of records, by the names an `AttackReport` gives them."""
        return {
            "n_records": self.n_records,
            "n_given": self.n_given,
            "n_withheld": self.n_withheld,
            "n_seen": self.n_seen,
        }


def prepare_evidence(
    released: npt.ArrayLike,
    confidential: npt.ArrayLike,
    *,
    raw: npt.ArrayLike | None = None,
    noise: npt.ArrayLike | None = None,
    columns: Sequence[Column] | None = None,
    features: Sequence[Column] | None = None,
    groups: npt.ArrayLike | None = None,
    seen: npt.ArrayLike | None = None,
    options: AttackOptions | None = None,
) -> Evidence:
    """Draw the bounded sample, standardise what is attacked, and code what is guessed.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees. A row of NaN is a withheld record and left out.
    confidential : (n_records,) or (n_records, n_columns)
        What must not be guessed. Without `columns`, integers, booleans and strings are
        classes, floats numbers.
    raw : (n_records, n_features), optional
        The records before the release, for the control.
    noise : (n_records, any), optional
        The records with noise of equal utility, for comparison.
    columns
        Name and kind of each confidential column; codes -1 and NaN are missing.
    features
        Name and kind of each column of the released, raw and noisy records, where some are
        categorical; these are attacked by indicators of their categories.
    groups : (n_records,), optional
        Subject of each record, where records share one.
    seen : (n_records,), optional
        True for records the sanitiser learned from.
    options
        Bounds and the treatment of rare classes.

    Raises
    ------
    InputError
        If shapes differ, values are not finite, a variable has a single class or a class too
        small to judge, or no records are left.
    """
    options = options or AttackOptions()
    given = {"released": released, "raw": raw, "noise": noise}
    arrays = {name: np.asarray(array) for name, array in given.items() if array is not None}
    names, kinds, truth = code_targets(confidential, columns)
    _check_rows(arrays | {"confidential": truth}, {"groups": groups, "seen": seen})
    withheld = _find_withheld(arrays["released"])
    learned = np.zeros(len(truth), np.bool_) if seen is None else np.asarray(seen, np.bool_)
    keeps_seen = options.seen_records == "train"
    usable = np.flatnonzero(~withheld & (keeps_seen | ~learned) & ~np.isnan(truth).all(axis=1))
    width = len(features or ()) or max(array.shape[-1] for array in arrays.values())
    rows = _draw_rows(usable, width, options)
    kept = [
        code_column(truth[rows, j], name, kind, options)
        for j, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    subject = None if groups is None else np.asarray(groups)[rows]
    return Evidence(
        sources={
            name: _prepare_source(array[rows], name, features, options)
            for name, array in arrays.items()
        },
        columns=tuple(column for column, _ in kept),
        truth=np.column_stack([codes for _, codes in kept]),
        groups=None if subject is None else np.unique(subject, return_inverse=True)[1],
        train_only=learned[rows] if keeps_seen and seen is not None else None,
        n_given=len(truth),
        n_withheld=int(withheld.sum()),
        n_seen=int(learned.sum()),
    )


def _check_rows(
    arrays: dict[str, npt.NDArray[Any]], optional: dict[str, npt.ArrayLike | None]
) -> None:
    more = {name: np.asarray(array) for name, array in optional.items() if array is not None}
    n_records = len(arrays["released"])
    for name, array in (arrays | more).items():
        if array.ndim == 0 or len(array) != n_records:
            raise InputError(
                f"{name} has shape {array.shape}, but released has {n_records} rows.",
                remedy=f"Give {name} one row per record.",
            )


def _prepare_source(
    table: npt.NDArray[Any],
    name: str,
    features: Sequence[Column] | None,
    options: AttackOptions,
) -> Coordinates:
    if features is not None:
        table = expand_codes(table, features, name)
    return measure_coordinates(
        table, name=name, max_bytes=options.max_bytes // 4, seed=options.seed
    )


def _find_withheld(table: npt.NDArray[np.generic]) -> BoolArray:
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.floating):
        return np.zeros(len(table), np.bool_)
    return find_empty_rows(table)


def _draw_rows(usable: IntArray, n_features: int, options: AttackOptions) -> IntArray:
    if len(usable) < 20:
        raise InputError(
            f"{len(usable)} records can be attacked after withheld, seen and unlabelled ones "
            "are left out.",
            remedy="Give at least 20 labelled records that the sanitiser did not learn from.",
            code="too_few_records",
        )
    size = options.plan_sample(len(usable), n_features)
    if size == len(usable):
        return usable
    chosen = np.random.default_rng(options.seed).choice(len(usable), size, replace=False)
    return np.asarray(np.sort(usable[chosen]))
