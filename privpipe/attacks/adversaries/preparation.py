"""Preparation of the evidence: records are sampled and standardised, targets coded."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

import numpy as np

from privpipe.attacks.adversaries import attack_options, coordinates
from privpipe.attacks.adversaries import auxiliary as auxiliaries
from privpipe.attacks.adversaries.attack_options import USUAL, AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary, standardise
from privpipe.attacks.adversaries.coordinates import TrainingMatrix
from privpipe.attacks.adversaries.evidence import Evidence, LeftOut
from privpipe.attacks.statistics.splits import find_ties
from privpipe.errors import InputError, OptionError
from privpipe.numerics.finite import as_array, as_reals, find_empty_rows, find_finite_rows
from privpipe.numerics.kinds import code_classes, guess_classes
from privpipe.protocols import AnyArray, ArrayLike, BoolArray, Column, FloatArray, IntArray

Columns = Sequence[Column] | None
"""Of those that are not described names and kinds are guessed."""


class KnownInputs(TypedDict, total=False):
    """What is known of released records and of those who hold them; all of it optional.

    Parameters
    ----------
    raw : (n_records, n_features)
        The records before the release: the control, on which adversaries should succeed.
    noise : (n_records, any)
        The records with noise of equal utility, for comparison; see `privpipe.attacks.equal_noise`.
    columns
        Name and kind of each confidential column; codes -1 and NaN are missing. Without it
        integers, booleans and strings are classes, floats numbers.
    features
        Name and kind of each column of the released, raw and noisy records, where some are
        categorical; these are attacked by indicators of their categories.
    groups : (n_records,)
        Subject of each record, where records share one; splits and intervals are then by subject,
        and several records of one are read jointly.
    seen : (n_records,)
        True for records the sanitiser learned from; `AttackOptions.seen_records` says what
        becomes of them.
    places : (n_records,)
        Order of the records in time; by default the order given. Neighbours of a group that is
        itself to be named stay on one side.
    auxiliary
        What is released besides the features: included variables, the order of the records, their
        partitions. Without it these are not attacked.
    desired
        The true desired variables, as included variables are given: limits then count what is
        gained beyond knowing them.
    ties
        Whether equal measured records are repeats of one, on one side of every split; by default
        they are. Categorical ones (see `features`) are equal by nature.
    """

    raw: ArrayLike | None
    noise: ArrayLike | None
    columns: Columns
    features: Columns
    groups: ArrayLike | None
    seen: ArrayLike | None
    places: ArrayLike | None
    auxiliary: Auxiliary | None
    desired: Auxiliary | None
    ties: bool


def prepare_evidence(
    released: ArrayLike,
    confidential: ArrayLike,
    *,
    options: AttackOptions = USUAL,
    **known: Unpack[KnownInputs],
) -> Evidence:
    """Draw the bounded sample, standardise what is attacked, and code what is guessed.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees. A row of NaN is a withheld record, attacked by its absence.
    confidential : (n_records,) or (n_records, n_columns)
        What must not be guessed.
    options
        Bounds and the treatment of rare classes.
    known
        See `KnownInputs`.

    Raises
    ------
    OptionError
        If something else is given by name.
    InputError
        If shapes differ, values are not finite, no records are left, or no variable can be judged.
        A variable with a single class or a class too small cannot be; where others can, it is left
        out and named.
    """
    AttackOptions.check(options)
    arrays = _take_arrays(released, known)
    features, groups, seen = known.get("features"), known.get("groups"), known.get("seen")
    auxiliary = known.get("auxiliary") or Auxiliary()
    desired, places = known.get("desired") or Auxiliary(), known.get("places")
    names, kinds, truth = code_targets(confidential, known.get("columns"))
    optional = {"groups": groups, "seen": seen, "places": places}
    optional |= {"surroundings": auxiliary.surroundings, "desired": desired.included}
    _check_rows(arrays | {"confidential": truth}, optional | auxiliary.arrays())
    # Before the sample is drawn: the surroundings of a record are rows that may not be sampled.
    withheld = _find_withheld(arrays["released"])
    if auxiliary.surroundings is None:
        table = join_included(arrays["released"], auxiliary.included, withheld)
        around = auxiliaries.describe_surroundings(table, auxiliary.position)
        auxiliary = replace(auxiliary, surroundings=around)
    learned = np.zeros(len(truth), np.bool_) if seen is None else np.asarray(seen, np.bool_)
    trains_seen = options.seen_records == "train"
    # An eraser is exact on the records it learned from: they teach an adversary less than fresh
    # ones.
    usable = np.flatnonzero((trains_seen | ~learned) & ~np.isnan(truth).all(axis=1))
    width = len(features or ()) or max(array.shape[-1] for array in arrays.values())
    rows = _draw_rows(usable, width, options)
    # On the sample: a class that is large in the collection may be too small here to be judged.
    coded, left_out = _code_columns(truth[rows], names, kinds, options)
    sampled = {name: array[rows] for name, array in arrays.items()}
    about = withheld[rows], features, options
    sources = {name: _prepare_source(array, name, *about) for name, array in sampled.items()}
    sources |= _read_release(
        sampled["released"], sources["released"], withheld[rows], auxiliary.take(rows), features
    )
    are_codes = features is not None and all(column.is_categorical for column in features)
    who = None if groups is None else np.unique(np.asarray(groups)[rows], return_inverse=True)[1]
    return Evidence(
        sources=sources | _join_desired(sources, desired.take(rows)),
        columns=tuple(column for column, _ in coded),
        truth=np.column_stack([codes for _, codes in coded]),
        groups=who,
        train_only=learned[rows] if trains_seen and seen is not None else None,
        n_given=len(truth),
        n_withheld=int(withheld.sum()),
        n_seen=int(learned.sum()),
        left_out=left_out,
        places=rows if places is None else np.asarray(places, np.int64)[rows],
        tasks=auxiliaries.code_tasks(desired.take(rows)),
        # Of codes alone equal records are what the table is made of, no repeats.
        ties=find_ties(sampled["released"], sampled.get("raw"))
        if known.get("ties", True) and groups is None and not are_codes
        else None,
    )


def _take_arrays(released: ArrayLike, known: KnownInputs) -> dict[str, AnyArray]:
    """Arrays of records by name, once all that is given has been checked."""
    if strange := known.keys() - KnownInputs.__annotations__.keys():
        allowed = f"Give some of: {', '.join(KnownInputs.__annotations__)}."
        raise OptionError(f"No attack reads {min(strange)!r}.", remedy=allowed)
    for name in ("features", "columns"):
        if not isinstance(known.get(name), Sequence | None):
            problem = f"{name} is a {type(known.get(name)).__name__}."
            raise InputError(problem, remedy="Give a list of them, one for each column.")
    for name, of_columns in {n: known.get(n) for n in ("auxiliary", "desired")}.items():
        if not isinstance(of_columns, Auxiliary | None):
            raise InputError(
                f"{name} is a {type(of_columns).__name__}, which does not say its columns' kinds.",
                remedy=f"Give Auxiliary(included=..., columns=...) of {Auxiliary.__module__}.",
            )
    given = {"released": released, "raw": known.get("raw"), "noise": known.get("noise")}
    arrays = {n: as_array(array, n) for n, array in given.items() if array is not None}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":  # NumPy's refusals of text quote it
            arrays[name] = as_reals(array, name)
    if "released" not in arrays or arrays["released"].ndim < 2:
        problem = f"released has shape {np.shape(released)}."
        raise InputError(problem, remedy="Give a matrix, one row per record.")
    return arrays


def _code_columns(
    truth: FloatArray, names: Sequence[str], kinds: Sequence[bool], options: AttackOptions
) -> tuple[list[tuple[Column, FloatArray]], tuple[LeftOut, ...]]:
    """Variables that can be judged, and why others cannot; InputError where none can."""
    coded: list[tuple[Column, FloatArray]] = []
    left_out: list[LeftOut] = []
    for name, kind, values in zip(names, kinds, truth.T, strict=True):
        try:
            coded.append(code_column(values, name, kind, options))
            attack_options.check_adversaries(name, coded[-1][0].is_categorical, options)
        except InputError as error:
            if len(names) == len(left_out) + 1:
                raise
            left_out.append(LeftOut(name, str(error)))
    return coded, tuple(left_out)


def _read_release(
    released: AnyArray,
    main: TrainingMatrix,
    withheld: BoolArray,
    auxiliary: Auxiliary,
    features: Columns,
) -> dict[str, TrainingMatrix]:
    """Further readings of the release: with auxiliary information, and of its bits."""
    found = {"released": main}
    # Which rows are withheld may say what was in them.
    if withheld.any() and not withheld.all():
        found["released"] = _join(main, standardise(withheld[:, None].astype(np.float64)))
    expanded = standardise(auxiliaries.expand_auxiliary(auxiliary, withheld))
    if auxiliary.arrays() and expanded.shape[1]:
        found["everything"] = _join(main, expanded, len(auxiliary.columns))
    for name, columns in auxiliaries.expand_variables(auxiliary).items():
        found[f"{attack_options.ALONE}{name}"] = TrainingMatrix(columns, 1, None, 0)
    for name, table in auxiliary.earlier.items():
        whole = found.get("everything", found["released"])
        found[f"{attack_options.JOINT}{name}"] = _join_earlier(whole, table)
    bits, n_columns = _list_numbers(released, withheld, auxiliary, features)
    if n_columns:
        found["bits"] = TrainingMatrix(bits, n_columns, None, 0)
    assert auxiliary.surroundings is not None, "made where it is not given"
    around = auxiliaries.expand_surroundings(auxiliary.surroundings, auxiliary.position is not None)
    if around.shape[1]:
        found["surroundings"] = TrainingMatrix(around, released.shape[1], None, 0)
    return found


def _join(main: TrainingMatrix, columns: FloatArray, n_features: int = 0) -> TrainingMatrix:
    """A source with more columns, of so many more features."""
    values = np.hstack([main.values, columns.astype(main.values.dtype)])
    return replace(main, values=values, n_features=main.n_features + n_features)


def _list_numbers(
    released: AnyArray, withheld: BoolArray, auxiliary: Auxiliary, features: Columns
) -> tuple[FloatArray, int]:
    """Measured and auxiliary values as they are, how large records are, and how many columns."""
    numbers = released
    if features is not None:
        numbers = released[:, [not column.is_categorical for column in features]]
    if np.issubdtype(numbers.dtype, np.floating):
        numbers = np.where(withheld[:, None], numbers.dtype.type(0), numbers)
    sizes = [coordinates.measure_sizes(numbers)] if numbers.shape[1] > 1 else []
    others = auxiliary.numbers()
    if others.size:
        numbers = np.hstack([numbers, others])
    wide = numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)
    return np.hstack([wide, *sizes]), numbers.shape[1]


def join_included(released: AnyArray, included: FloatArray | None, withheld: BoolArray) -> AnyArray:
    """Rows as they are released with what is released by name; of withheld ones nothing."""
    if included is None:
        return released
    table = np.hstack([released, included])
    table[withheld] = np.nan
    return table


def _join_earlier(whole: TrainingMatrix, table: FloatArray) -> TrainingMatrix:
    """All that is released with an earlier release of the same records, row by row."""
    # A record that the earlier release withheld is at the mean, and a column says so.
    gone = np.isnan(table).all(axis=1)
    held = np.where(np.isfinite(table), table, 0.0)
    held[gone] = held[~gone].mean(axis=0) if not gone.all() else 0.0
    return _join(whole, standardise(np.column_stack([held, gone])), table.shape[1])


def _join_desired(read: dict[str, TrainingMatrix], desired: Auxiliary) -> dict[str, TrainingMatrix]:
    """The desired variables alone, and all that is released with them.

    Who gains nothing from the release alone may gain from both. An example is a secret that is the
    desired variable or its opposite, as a released bit says.
    """
    if desired.included is None or not desired.columns:
        return {}
    none = np.zeros(len(desired.included), np.bool_)
    columns = standardise(auxiliaries.expand_auxiliary(desired, none))
    if not columns.shape[1]:  # one and the same value of all
        return {}
    # Joined with all that is released, for the secret may be a function of both.
    whole = read.get("everything", read["released"])
    n = len(desired.columns)
    return {"joined": _join(whole, columns, n), "wanted": TrainingMatrix(columns, n, None, 0)}


def _check_rows(arrays: dict[str, AnyArray], optional: dict[str, ArrayLike | None]) -> None:
    more = {name: np.asarray(array) for name, array in optional.items() if array is not None}
    n_records = len(arrays["released"])
    for name, array in (arrays | more).items():
        if array.ndim == 0 or len(array) != n_records:
            problem = f"{name} has shape {array.shape}, but released has {n_records} rows."
            raise InputError(problem, remedy=f"Give {name} one row per record.")


def _prepare_source(
    table: AnyArray, name: str, withheld: BoolArray, features: Columns, options: AttackOptions
) -> TrainingMatrix:
    """Standardised columns; a withheld record, or one withheld for what it holds, is the mean."""
    if features is not None:
        table = expand_codes(table, features, name)
    # Raw records are whole where the release withheld them: they are read for the control.
    held = ~(withheld & ~find_finite_rows(table)) if table.ndim == 2 else ~withheld
    if not held.any():
        return TrainingMatrix(np.zeros((len(table), 1)), table.shape[1], 0, table.shape[1])
    # Larger matrices are held in single precision, see `plan_sample`.
    most, whole = options.max_bytes // 4, table if held.all() else table[held]
    found = coordinates.measure_coordinates(whole, name=name, max_bytes=most, seed=options.seed)
    if held.all():
        return found
    values = np.zeros((len(table), found.values.shape[1]), found.values.dtype)
    values[held] = found.values
    return replace(found, values=values)


def _find_withheld(table: AnyArray) -> BoolArray:
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.floating):
        return np.zeros(len(table), np.bool_)
    return find_empty_rows(table)


def _draw_rows(usable: IntArray, n_features: int, options: AttackOptions) -> IntArray:
    if len(usable) < 20:
        raise InputError(
            f"{len(usable)} records can be attacked after seen and unlabelled ones are left out.",
            remedy="Give at least 20 labelled records that the sanitiser did not learn from.",
            code="too_few_records",
        )
    size = options.plan_sample(len(usable), n_features)
    if size == len(usable):
        return usable
    chosen = np.random.default_rng(options.seed).choice(len(usable), size, replace=False)
    return np.asarray(np.sort(usable[chosen]))


def code_targets(
    confidential: ArrayLike, columns: Columns
) -> tuple[list[str], list[bool], FloatArray]:
    """Names, whether categorical, and values or codes of the confidential columns.

    Parameters
    ----------
    confidential : (n_records,) or (n_records, n_columns)
        Numbers, codes, booleans or strings; NaN, None or masked where missing.
    columns
        Names and kinds. Without them booleans and strings are categorical, and integers where
        they have at most 64 different values, which is a guess where they are not 0 and 1.

    Returns
    -------
    names, categorical : per column
    truth : (n_records, n_columns), float64
        NaN where missing: NaN, or a code below 0.
    """
    table = as_array(confidential, "confidential")
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] == 0:
        problem = f"confidential has shape {table.shape}."
        raise InputError(problem, remedy="Give one column or several.")
    names = _name_columns(table.shape[1], columns)
    kinds = [True] * len(names)
    if not np.issubdtype(table.dtype, np.number):
        from pandas import isna  # slow to load

        texts = (np.array([*map(str, column.tolist())], object) for column in table.T)
        coded = [np.unique(column, return_inverse=True)[1] for column in texts]
        truth = np.where(isna(table), np.nan, np.column_stack(coded))
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
        problem = f"confidential holds {np.count_nonzero(np.isinf(truth))} infinite values."
        raise InputError(problem, remedy="Code missing values as NaN.")
    return names, kinds, truth


def _name_columns(width: int, columns: Columns) -> list[str]:
    if columns is None:
        return ["confidential"] if width == 1 else [f"confidential_{j}" for j in range(width)]
    if len(columns) != width:
        problem = f"{len(columns)} columns are named, but confidential has {width}."
        raise InputError(problem, remedy="Name each column once.")
    names = [column.name for column in columns]
    if len(set(names)) < width:
        problem = f"{width} confidential columns have {len(set(names))} distinct names."
        raise InputError(problem, remedy="Give each its own name.")
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


def expand_codes(table: AnyArray, columns: Sequence[Column], name: str) -> AnyArray:
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
        problem = f"{name} has shape {table.shape}, but {len(columns)} features are named."
        raise InputError(problem, remedy="Name each feature once.")
    pairs = zip(columns, table.astype(np.float64).T, strict=True)
    parts = [x if c.n_categories is None else _indicate(x, c, name) for c, x in pairs]
    return np.column_stack(parts)


def _indicate(values: FloatArray, column: Column, name: str) -> FloatArray:
    n = column.n_categories or 0
    wrong = int(np.count_nonzero((values >= n) | (values != np.floor(values))))
    if wrong:
        problem = f"{wrong} records of {name} have no code of {column.name!r} below {n}."
        raise InputError(problem, remedy="Give integer codes, -1 where missing.")
    # Whether a value is missing may say what was in it: absence is a category.
    return np.asarray(np.eye(n + 1)[np.where(values < 0, n, values).astype(np.int64)])
