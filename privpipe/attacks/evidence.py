"""What all attacks of one audit share: sampled records, standardised, and coded targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from privpipe.attacks.coordinates import Coordinates, measure_coordinates
from privpipe.attacks.options import AttackOptions
from privpipe.errors import InputError
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
    table = np.asarray(released)
    names, kinds, truth = _code_targets(confidential, columns)
    arrays = {"released": table}
    arrays |= {} if raw is None else {"raw": np.asarray(raw)}
    arrays |= {} if noise is None else {"noise": np.asarray(noise)}
    extra = {"groups": groups, "seen": seen, "confidential": truth}
    for name, array in (
        arrays | {k: np.asarray(v) for k, v in extra.items() if v is not None}
    ).items():
        if array.ndim == 0 or len(array) != len(table):
            raise InputError(
                f"{name} has shape {array.shape}, but released has {len(table)} rows.",
                remedy=f"Give {name} one row per record.",
            )
    withheld = _find_withheld(table)
    left_out = np.zeros(len(table), np.bool_) if seen is None else np.asarray(seen, np.bool_)
    keeps_seen = options.seen_records == "train"
    usable = np.flatnonzero(~withheld & (keeps_seen | ~left_out) & ~np.isnan(truth).all(axis=1))
    rows = _draw_rows(usable, max(a.shape[-1] for a in arrays.values()), options)
    kept = [
        _code_column(truth[rows, j], n, k, options)
        for j, (n, k) in enumerate(zip(names, kinds, strict=True))
    ]
    return Evidence(
        sources={
            name: measure_coordinates(array[rows], name=name, seed=options.seed)
            for name, array in arrays.items()
        },
        columns=tuple(column for column, _ in kept),
        truth=np.column_stack([codes for _, codes in kept]),
        groups=None
        if groups is None
        else np.unique(np.asarray(groups)[rows], return_inverse=True)[1],
        train_only=left_out[rows] if keeps_seen and seen is not None else None,
        n_given=len(table),
        n_withheld=int(withheld.sum()),
        n_seen=int(left_out.sum()),
    )


def _code_targets(
    confidential: npt.ArrayLike, columns: Sequence[Column] | None
) -> tuple[list[str], list[bool], FloatArray]:
    """Names, whether categorical, and float64 values or codes of the confidential columns."""
    table = np.asarray(confidential)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] == 0:
        raise InputError(
            f"confidential has shape {table.shape}.", remedy="Give one column or several."
        )
    width = table.shape[1]
    if columns is not None and len(columns) != width:
        raise InputError(
            f"{len(columns)} columns are named, but confidential has {width}.",
            remedy="Name each column once.",
        )
    if np.issubdtype(table.dtype, np.number):
        discrete = np.issubdtype(table.dtype, np.integer)
        kinds = [discrete] * width if columns is None else [c.is_categorical for c in columns]
        truth = table.astype(np.float64)
    else:
        coded = [np.unique(table[:, j].astype(str), return_inverse=True)[1] for j in range(width)]
        kinds, truth = [True] * width, np.column_stack(coded).astype(np.float64)
    given = [c.name for c in columns] if columns else [f"confidential_{j}" for j in range(width)]
    names = ["confidential"] if columns is None and width == 1 else given
    if len(set(names)) < width:
        raise InputError(
            f"{width} confidential columns have {len(set(names))} distinct names.",
            remedy="Give each its own name.",
        )
    truth[:, kinds] = np.where(truth[:, kinds] < 0, np.nan, truth[:, kinds])
    if np.isinf(truth).any():
        raise InputError(
            f"confidential holds {np.count_nonzero(np.isinf(truth))} infinite values.",
            remedy="Code missing values as NaN.",
        )
    return names, kinds, truth


def _find_withheld(table: npt.NDArray[np.generic]) -> BoolArray:
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.floating):
        return np.zeros(len(table), np.bool_)
    # One column tells which rows need a look, so that no mask of the whole table is made.
    withheld: BoolArray = np.isnan(table[:, 0])
    some = np.flatnonzero(withheld)
    withheld[some] = np.isnan(table[some]).all(axis=1)
    return withheld


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


def _code_column(
    values: FloatArray, name: str, categorical: bool, options: AttackOptions
) -> tuple[Column, FloatArray]:
    """Numbers as they are; classes as codes 0 .. n_classes - 1 without gaps."""
    present = np.flatnonzero(~np.isnan(values))
    if not categorical:
        if len(present) == 0 or np.ptp(values[present]) == 0:
            raise InputError(
                f"The confidential variable {name!r} does not vary in {len(present)} records.",
                remedy="Leave it out of the audit, or audit more records.",
                code="single_class",
            )
        return Column(name), values
    codes, sizes = np.unique(values[present], return_inverse=True, return_counts=True)[1:]
    rare = sizes < options.min_class_records
    if rare.any() and options.rare_classes == "merge":
        new = np.where(rare, 0, np.cumsum(~rare))
        codes, sizes = np.unique(new[codes], return_inverse=True, return_counts=True)[1:]
        rare = sizes < options.min_class_records
    if len(sizes) < 2:
        raise InputError(
            f"The confidential variable {name!r} has a single class in {len(present)} records.",
            remedy="Leave it out of the audit, or audit records of several classes.",
            code="single_class",
        )
    if rare.any():
        raise InputError(
            f"{int(rare.sum())} of the {len(sizes)} classes of the confidential variable "
            f"{name!r} have fewer than {options.min_class_records} records.",
            remedy='Audit more records, or set rare_classes = "merge".',
            code="small_class",
        )
    coded = np.full(len(values), np.nan)
    coded[present] = codes
    return Column(name, len(sizes)), coded
