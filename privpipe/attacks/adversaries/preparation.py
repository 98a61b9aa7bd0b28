"""Preparation of the evidence: records are sampled and standardised, targets coded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries.attack_options import ALONE, TOGETHER, AttackOptions
from privpipe.attacks.adversaries.auxiliary import (
    Auxiliary,
    code_tasks,
    describe_surroundings,
    expand_auxiliary,
    expand_surroundings,
    expand_variables,
    standardise,
)
from privpipe.attacks.adversaries.codes import code_column, code_targets, expand_codes
from privpipe.attacks.adversaries.coordinates import (
    TrainingMatrix,
    measure_coordinates,
    measure_sizes,
)
from privpipe.attacks.adversaries.evidence import Evidence, LeftOut
from privpipe.attacks.statistics.ties import find_ties
from privpipe.errors import InputError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.protocols import BoolArray, Column, FloatArray, IntArray


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
    places: npt.ArrayLike | None = None,
    auxiliary: Auxiliary | None = None,
    desired: Auxiliary | None = None,
    ties: bool = True,
    options: AttackOptions | None = None,
) -> Evidence:
    """Draw the bounded sample, standardise what is attacked, and code what is guessed.

    Parameters
    ----------
    released : (n_records, n_features_released)
        What an outsider sees. A row of NaN is a withheld record, attacked by its absence.
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
    places : (n_records,), optional
        Order of the records in time; as given, where nothing is said.
    auxiliary
        What is released beside the features: included variables, place, partition.
    desired
        The true wanted answers, as included variables are given; limits count what is gained
        beyond knowing them.
    ties
        Whether equal measured records are repeats of one, on one side of every split; categorical
        ones (see `features`) are equal by nature.
    options
        Bounds and the treatment of rare classes.

    Raises
    ------
    InputError
        If shapes differ, values are not finite, no records are left, or no variable can be
        judged because it has a single class or a class too small. Where others can, such a
        variable is left out and named.
    """
    options = options or AttackOptions()
    given = {"released": released, "raw": raw, "noise": noise}
    arrays = {name: np.asarray(array) for name, array in given.items() if array is not None}
    names, kinds, truth = code_targets(confidential, columns)
    auxiliary, desired = auxiliary or Auxiliary(), desired or Auxiliary()
    answers = {"wanted": desired.included} if desired.included is not None else {}
    around = {"surroundings": auxiliary.surroundings}
    _check_rows(
        arrays | {"confidential": truth},
        {"groups": groups, "seen": seen, "places": places} | around | auxiliary.arrays() | answers,
    )
    withheld = _find_withheld(arrays["released"])
    if auxiliary.surroundings is None:
        table = join_included(arrays["released"], auxiliary.included, withheld)
        auxiliary = replace(
            auxiliary, surroundings=describe_surroundings(table, auxiliary.position)
        )
    learned = np.zeros(len(truth), np.bool_) if seen is None else np.asarray(seen, np.bool_)
    keeps_seen = options.seen_records == "train"
    usable = np.flatnonzero((keeps_seen | ~learned) & ~np.isnan(truth).all(axis=1))
    width = len(features or ()) or max(array.shape[-1] for array in arrays.values())
    rows = _draw_rows(usable, width, options)
    kept, left_out = _code_columns(truth[rows], names, kinds, options)
    subject = None if groups is None else np.asarray(groups)[rows]
    answer = desired.take(rows)
    sources = {
        name: _prepare_source(array[rows], name, withheld[rows], features, options)
        for name, array in arrays.items()
    }
    readings = _read_release(
        arrays["released"][rows], sources, withheld[rows], auxiliary.take(rows), features
    )
    return Evidence(
        sources=_join_desired(readings, answer),
        columns=tuple(column for column, _ in kept),
        truth=np.column_stack([codes for _, codes in kept]),
        groups=None if subject is None else np.unique(subject, return_inverse=True)[1],
        train_only=learned[rows] if keeps_seen and seen is not None else None,
        n_given=len(truth),
        n_withheld=int(withheld.sum()),
        n_seen=int(learned.sum()),
        left_out=left_out,
        places=rows if places is None else np.asarray(places, np.int64)[rows],
        tasks=code_tasks(answer),
        ties=None if groups is not None or not ties else _tie(arrays, rows, features),
    )


def _tie(
    arrays: Mapping[str, npt.NDArray[Any]], rows: IntArray, features: Sequence[Column] | None
) -> IntArray | None:
    """Sets of records that are equal raw, or released."""
    if features is not None and all(column.is_categorical for column in features):
        return None
    return find_ties(arrays["released"][rows], arrays["raw"][rows] if "raw" in arrays else None)


def _code_columns(
    truth: FloatArray, names: Sequence[str], kinds: Sequence[bool], options: AttackOptions
) -> tuple[list[tuple[Column, FloatArray]], tuple[LeftOut, ...]]:
    """Variables that can be judged, and why others cannot; InputError where none can."""
    kept: list[tuple[Column, FloatArray]] = []
    left_out: list[LeftOut] = []
    for j, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        try:
            kept.append(code_column(truth[:, j], name, kind, options))
        except InputError as error:
            if len(names) == len(left_out) + 1:
                raise
            left_out.append(LeftOut(name, str(error)))
    return kept, tuple(left_out)


def _read_release(
    released: npt.NDArray[Any],
    sources: dict[str, TrainingMatrix],
    withheld: BoolArray,
    auxiliary: Auxiliary,
    features: Sequence[Column] | None,
) -> dict[str, TrainingMatrix]:
    """The sources with further readings of the release: all of it together, and its bits."""
    main = sources["released"]
    more = standardise(expand_auxiliary(auxiliary, withheld)).astype(main.values.dtype)
    found = dict(sources)
    if withheld.any() and not withheld.all():
        mask = standardise(withheld[:, None].astype(np.float64)).astype(main.values.dtype)
        found["released"] = replace(main, values=np.hstack([main.values, mask]))
    if auxiliary.arrays() and more.shape[1]:
        found["everything"] = replace(
            main,
            values=np.hstack([main.values, more]),
            n_features=main.n_features + len(auxiliary.columns),
        )
    measured = [j for j, column in enumerate(features or ()) if not column.is_categorical]
    numbers = released if features is None else released[:, measured]
    if np.issubdtype(numbers.dtype, np.floating):
        numbers = np.where(withheld[:, None], numbers.dtype.type(0), numbers)
    for name, columns in expand_variables(auxiliary).items():
        found[f"{ALONE}{name}"] = TrainingMatrix(columns, 1, None, 0)
    found |= _join_earlier(found, auxiliary.earlier)
    sizes = [measure_sizes(numbers)] if numbers.shape[1] > 1 else []
    if (others := auxiliary.numbers()).size:
        numbers = np.hstack([numbers, others])
    if numbers.shape[1]:
        wide = numbers if numbers.dtype == np.float32 else numbers.astype(np.float64)
        found["bits"] = TrainingMatrix(np.hstack([wide, *sizes]), numbers.shape[1], None, 0)
    assert auxiliary.surroundings is not None, "made where it is not given"
    around = expand_surroundings(auxiliary.surroundings, auxiliary.position is not None)
    if around.shape[1]:
        found["surroundings"] = TrainingMatrix(around, released.shape[1], None, 0)
    return found


def join_included(
    released: npt.NDArray[Any], included: FloatArray | None, withheld: BoolArray
) -> npt.NDArray[Any]:
    """Rows as they are released with what is released by name; of withheld ones nothing."""
    if included is None:
        return released
    table = np.hstack([released, included])
    table[withheld] = np.nan
    return table


def _join_earlier(
    readings: dict[str, TrainingMatrix], earlier: Mapping[str, FloatArray]
) -> dict[str, TrainingMatrix]:
    """All that is released with each earlier release of the same records, row by row."""
    whole, found = readings.get("everything", readings["released"]), {}
    for name, table in earlier.items():
        gone = np.isnan(table).all(axis=1)
        held = np.where(np.isfinite(table), table, 0.0)
        held[gone] = held[~gone].mean(axis=0) if not gone.all() else 0.0
        columns = standardise(np.column_stack([held, gone]))
        values = np.hstack([whole.values, columns.astype(whole.values.dtype)])
        n_features = whole.n_features + table.shape[1]
        found[f"{TOGETHER}{name}"] = replace(whole, values=values, n_features=n_features)
    return found


def _join_desired(
    readings: dict[str, TrainingMatrix], desired: Auxiliary
) -> dict[str, TrainingMatrix]:
    """The readings with the wanted answer alone, and with all that is released and the answer.

    Who gains nothing from the release alone may gain from both: a secret that is the answer or
    its opposite, as a released bit says.
    """
    if desired.included is None or not desired.columns:
        return readings
    n_records = len(desired.included)
    answers = standardise(expand_auxiliary(desired, np.zeros(n_records, np.bool_)))
    if not answers.shape[1]:  # one and the same answer of all
        return readings
    whole = readings.get("everything", readings["released"])
    n_columns = len(desired.columns)
    joined = np.hstack([whole.values, answers.astype(whole.values.dtype)])
    return readings | {
        "joined": replace(whole, values=joined, n_features=whole.n_features + n_columns),
        "wanted": TrainingMatrix(answers, n_columns, None, 0),
    }


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
    withheld: BoolArray,
    features: Sequence[Column] | None,
    options: AttackOptions,
) -> TrainingMatrix:
    """Standardised columns; a withheld record, or one withheld for what it holds, is the mean."""
    if features is not None:
        table = expand_codes(table, features, name)
    held = ~(withheld & ~find_finite_rows(table)) if table.ndim == 2 else ~withheld
    if not held.any():
        return TrainingMatrix(np.zeros((len(table), 1)), table.shape[1], 0, table.shape[1])
    found = measure_coordinates(
        table if held.all() else table[held],
        name=name,
        max_bytes=options.max_bytes // 4,
        seed=options.seed,
    )
    if held.all():
        return found
    values = np.zeros((len(table), found.values.shape[1]), found.values.dtype)
    values[held] = found.values
    return replace(found, values=values)


def _find_withheld(table: npt.NDArray[np.generic]) -> BoolArray:
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
