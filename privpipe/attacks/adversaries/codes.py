"""Codes: confidential variables as classes or numbers, released categories as indicators."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.errors import InputError
from privpipe.numerics.kinds import code_classes, guess_classes
from privpipe.protocols import Column, FloatArray, IntArray


def code_targets(
    confidential: npt.ArrayLike, columns: Sequence[Column] | None
) -> tuple[list[str], list[bool], FloatArray]:
    """Names, whether categorical, and values or codes of the confidential columns.

    Parameters
    ----------
    confidential : (n_records,) or (n_records, n_columns)
        Numbers, codes, booleans or strings.
    columns
        Names and kinds. Without them booleans and strings are categorical, and integers where
        they have at most 64 different values, which is a guess where they are not 0 and 1.

    Returns
    -------
    names, categorical : per column
    truth : (n_records, n_columns), float64
        NaN where missing: NaN, or a code below 0.
    """
    table = np.asarray(confidential)
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] == 0:
        raise InputError(
            f"confidential has shape {table.shape}.", remedy="Give one column or several."
        )
    names = _name_columns(table.shape[1], columns)
    kinds = [True] * len(names)
    if not np.issubdtype(table.dtype, np.number):
        coded = [np.unique(column.astype(str), return_inverse=True)[1] for column in table.T]
        truth = np.column_stack(coded).astype(np.float64)
    elif columns is not None:
        truth, kinds = table.astype(np.float64), [column.is_categorical for column in columns]
    else:
        truth, say = table.astype(np.float64), "Say it by columns=[Column(name, n_categories)]."
        is_whole = table.dtype.kind in "iu"
        kinds = [is_whole and guess_classes(table[:, j], name, say) for j, name in enumerate(names)]
        for j in np.flatnonzero(kinds):  # without kinds -1 may be a class
            truth[:, j] = code_classes(table[:, j])[0]
    truth[:, kinds] = np.where(truth[:, kinds] < 0, np.nan, truth[:, kinds])
    if np.isinf(truth).any():
        raise InputError(
            f"confidential holds {np.count_nonzero(np.isinf(truth))} infinite values.",
            remedy="Code missing values as NaN.",
        )
    return names, kinds, truth


def _name_columns(width: int, columns: Sequence[Column] | None) -> list[str]:
    if columns is None:
        return ["confidential"] if width == 1 else [f"confidential_{j}" for j in range(width)]
    if len(columns) != width:
        raise InputError(
            f"{len(columns)} columns are named, but confidential has {width}.",
            remedy="Name each column once.",
        )
    names = [column.name for column in columns]
    if len(set(names)) < width:
        raise InputError(
            f"{width} confidential columns have {len(set(names))} distinct names.",
            remedy="Give each its own name.",
        )
    return names


def code_column(
    values: FloatArray, name: str, categorical: bool, options: AttackOptions
) -> tuple[Column, FloatArray]:
    """Numbers as they are; classes as codes 0 .. n_classes - 1 without gaps.

    Parameters
    ----------
    values : (n_records,)
        Codes or numbers, NaN where missing.
    name, categorical
        Name and kind.
    options
        What to do with classes too small to be judged.

    Raises
    ------
    InputError
        If the variable does not vary, or a class is too small. No label is named.
    """
    present = np.flatnonzero(~np.isnan(values))
    varies = len(present) > 0 and np.ptp(values[present]) > 0
    codes: IntArray
    sizes: IntArray
    codes, sizes = np.unique(values[present], return_inverse=True, return_counts=True)[1:]
    if categorical and options.rare_classes == "merge":
        codes, sizes = _merge_rare(codes, sizes, options.min_class_records)
    if not varies or len(sizes) < 2:
        why = "has a single class" if categorical else "does not vary"
        raise InputError(
            f"The confidential variable {name!r} {why} in {len(present)} records"
            f"{' after rare ones are merged' if varies else ''}.",
            remedy="Leave it out, or audit more records (in a run: [audit] holdout, max_records).",
            code="single_class",
        )
    if not categorical:
        return Column(name), values
    rare = sizes < options.min_class_records
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


def _merge_rare(codes: IntArray, sizes: IntArray, fewest: int) -> tuple[IntArray, IntArray]:
    """Join rare classes, and the smallest others, until what they make is large enough."""
    n_rare = int((sizes < fewest).sum())
    if not n_rare:
        return codes, sizes
    order = np.argsort(sizes, kind="stable")
    # As many of the smallest as make one class large enough, and all rare ones in any case.
    joined = int(np.searchsorted(np.cumsum(sizes[order]), fewest)) + 1
    new = np.arange(len(sizes))
    new[order[: max(joined, n_rare)]] = -1
    return np.unique(new[codes], return_inverse=True, return_counts=True)[1:]


def expand_codes(
    table: npt.NDArray[np.generic], columns: Sequence[Column], name: str
) -> npt.NDArray[np.generic]:
    """Replace each categorical column by an indicator per category, missing being one.

    Parameters
    ----------
    table : (n_records, n_features)
        Codes 0 .. n_categories - 1, below 0 where missing, and numbers.
    columns
        Kind of each column.
    name
        Name of the table, for messages.

    Raises
    ------
    InputError
        If there are not as many kinds as columns, or a code is not below its number of
        categories.

    Examples
    --------
    >>> expand_codes(np.array([[1, 5], [-1, 6]]), [Column("a", 2), Column("b")], "released")
    array([[0., 1., 0., 5.],
           [0., 0., 1., 6.]])
    """
    if table.ndim != 2 or table.shape[1] != len(columns):
        raise InputError(
            f"{name} has shape {table.shape}, but {len(columns)} features are named.",
            remedy="Name each feature once.",
        )
    numbers = table.astype(np.float64).T
    return np.column_stack(
        [
            values if column.n_categories is None else _indicate(values, column, name)
            for column, values in zip(columns, numbers, strict=True)
        ]
    )


def _indicate(values: FloatArray, column: Column, name: str) -> FloatArray:
    n = column.n_categories or 0
    wrong = int(np.count_nonzero((values >= n) | (values != np.floor(values))))
    if wrong:
        raise InputError(
            f"{wrong} records of {name} have no code of {column.name!r} below {n}.",
            remedy="Give integer codes, -1 where missing.",
        )
    # Whether a value is missing may say what was in it: absence is a category.
    codes = np.where(values < 0, n, values).astype(np.int64)
    return np.asarray(np.eye(n + 1)[codes])
