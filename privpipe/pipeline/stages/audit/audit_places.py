"""Which chunks and partitions of a release reveal more than the rest: averages hide one bad file.

The cleaning pass summed up every chunk; here the sums are compared, all of them, in this process.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from privpipe.attacks.statistics.places import PlaceSums, PlaceTest, add_total, list_contrasts
from privpipe.cluster.passes.place_pass import PlacePlan, read_places
from privpipe.pipeline.runs.run import Run, Trained
from privpipe.protocols import AnyArray
from privpipe.store.access import location, workspace
from privpipe.store.arrays import blocks, layout
from privpipe.store.releases.release_writing import ReleasePlan

GROUPS = (8, 64)
"""Neighbouring chunks that are judged together as well, for chunks of few records."""

MOST_LISTED = 20
"""Places that are named, the worst first."""


def plan_places(run: Run, trained: Trained, plan: ReleasePlan) -> PlacePlan | None:
    """What is summed up of each chunk; None where no released record has a confidential label."""
    has = {variable.name for variable in run.collection.schema_of_records.variables}
    confidential = tuple(name for name in run.training.confidential if name in has)
    if not confidential or trained.n_records is not None:  # surrogates belong to no person
        return None
    return PlacePlan(
        url=location.join(workspace.workspace_url(run.release_url), "places"),
        run=run.run_id,
        collection=run.collection,
        arrays=plan.arrays,
        confidential=confidential,
        desired=tuple(name for name in run.training.desired if name in has),
    )


def audit_places(run: Run, trained: Trained, plan: ReleasePlan) -> dict[str, Any]:
    """Compare each chunk, partition and group of chunks with the rest of the release.

    Returns
    -------
    findings
        ``status``: "measured", "none" where the released records have no confidential variable, or
        "unknown"; the last two with the ``reason``. ``not_looked`` are variables that nothing is
        known of. ``places`` are those that surely reveal more than the rest, the worst first, of
        ``n_found``. ``blind`` is for each variable how many of ``n_chunks`` hold too little to show
        even a copy of it by themselves.
    """
    places = plan_places(run, trained, plan)
    looked = () if places is None else places.confidential
    found: dict[str, Any] = {
        "status": "unknown",
        "not_looked": [name for name in run.training.confidential if name not in looked],
        "n_chunks": plan.chunks.n_chunks,
        "n_partitions": len(run.collection.schema_of_records.partitions),
    }
    if places is None:
        reason = "the released records have no confidential variable"
        return found | {"status": "none", "reason": reason}
    return found | _compare(places, run)


def _compare(places: PlacePlan, run: Run) -> dict[str, Any]:
    larger: dict[tuple[str, int], PlaceSums] = {}
    total, n_chunks = None, 0
    for table in read_places(places):
        total = _merge(total, add_total(table))
        n_chunks += len(np.unique(table.chunk))
        for key, sums in _sum_larger(table, run):
            larger[key] = _merge(larger.get(key), sums)
    # Each place is compared with all the others: of a part of the sums these are not the release.
    if total is None or n_chunks != places.collection.plan.n_chunks:
        reason = "the sums of the cleaning are not in the workspace; run again"
        return {"reason": reason, "not_looked": list(run.training.confidential)}
    test = PlaceTest(
        total=total,
        n_codes=places.n_codes,
        n_places=n_chunks + len(larger),  # all are looked at: the level is shared by all
        allowed=run.options.gate.confidential_advantage_max,
        level=run.options.audit.level,
    )
    names = list_contrasts(places.find_columns(places.confidential))
    blind = np.zeros(len(names), int)
    listed: list[dict[str, Any]] = []
    for table in read_places(places):
        chunks, place = np.unique(table.chunk, return_inverse=True)
        sums = table.add_up(place, len(chunks))
        # A chunk of few records shows nothing even of a copy: it is said of how many that is so.
        blind += (~test.finds_copies(sums)).sum(axis=0)
        listed += _list_worst(test, sums, [_name_chunk(run, int(c)) for c in chunks], names, places)
    for key in sorted(larger):
        listed += _list_worst(test, larger[key], [_name_larger(run, *key)], names, places)
    # By what is sure, not by the estimate, which is largest where records are fewest.
    listed.sort(key=lambda one: -float(one["excess_lower"]))
    return {
        "status": "measured",
        "n_places": test.n_places,
        "n_found": len(listed),
        "places": listed[:MOST_LISTED],
        "blind": {name: int(min(blind[np.array(names) == name])) for name in dict.fromkeys(names)},
    }


def _merge(left: PlaceSums | None, right: PlaceSums) -> PlaceSums:
    return right if left is None else add_total(PlaceSums.concatenate([left, right]))


def _sum_larger(table: PlaceSums, run: Run) -> Iterator[tuple[tuple[str, int], PlaceSums]]:
    """The table's part of each partition and group of chunks that is not the whole release."""
    n_chunks = run.collection.plan.n_chunks
    keys = {f"{size}": table.chunk // size for size in GROUPS if n_chunks > size}
    if len(run.collection.schema_of_records.partitions) > 1:
        keys["partition"] = table.partition
    for kind, numbers in keys.items():
        found, place = np.unique(numbers, return_inverse=True)
        sums = table.add_up(place, len(found))
        for i, number in enumerate(map(int, found)):
            if number >= 0:  # -1: of a chunk with too many partitions to be held apart
                yield (kind, number), sums.take(np.arange(len(found)) == i)


def _list_worst(
    test: PlaceTest, sums: PlaceSums, said: list[str], names: list[str], places: PlacePlan
) -> list[dict[str, Any]]:
    """Of each place that surely reveals more than the rest, the worst column and variable."""
    advantage, excess = test.find_excess(sums)
    flat = excess.reshape(len(said), -1)
    worst = flat.argmax(axis=1)
    found = []
    for i in np.flatnonzero(flat.max(axis=1) > 0):
        contrast, column = np.unravel_index(worst[i], excess.shape[1:])
        found.append(
            {
                "place": said[i],
                "column": _name_column(int(column), places),
                "variable": names[contrast],
                "advantage": float(advantage[i, contrast, column]),
                "excess_lower": float(excess[i, contrast, column]),
            }
        )
    return found


def _name_column(column: int, places: PlacePlan) -> str:
    """A released column as people know it."""
    n_measured = sum(array.shape[1] for array in places.arrays if array.name == layout.FEATURES)
    if column >= 2 * n_measured:
        name = places.coded[column - 2 * n_measured][0]
        return f"the variable {name!r}"
    names = places.collection.schema_of_records.feature_names
    number = column % n_measured
    name = repr(names[number]) if len(names) == n_measured else str(number)
    return f"{'the spread of ' if column >= n_measured else ''}feature {name}"


def _name_chunk(run: Run, chunk: int) -> str:
    start, stop = run.collection.plan.rows(chunk)
    return f"chunk {chunk} (records {start:,} to {stop - 1:,})"


def _name_larger(run: Run, kind: str, number: int) -> str:
    if kind == "partition":
        return f"partition {run.collection.schema_of_records.partitions[number].name!r}"
    first, last = number * int(kind), (number + 1) * int(kind)
    return f"chunks {first} to {min(last, run.collection.plan.n_chunks) - 1} together"


def is_constant(run: Run, plan: ReleasePlan) -> bool:
    """Whether no released feature or attribute has two values; reads until one has.

    A single record, which cannot vary, is not called constant.
    """
    names = {layout.FEATURES, *run.collection.attributes} - set(run.options.release.include)
    arrays = [array for array in plan.arrays if array.name in names and 0 not in array.shape]
    if plan.chunks.n_records < 2 or not arrays:
        return False
    low: dict[str, AnyArray] = {}
    high = dict(low)
    for chunk in range(plan.chunks.n_chunks):
        for array in arrays:
            name, rows = array.name, plan.chunks.rows(chunk)
            block = blocks.read_block(plan.data_url, name, *rows, plan.run)
            ends = np.fmin.reduce(np.asarray(block)), np.fmax.reduce(np.asarray(block))
            low[name] = np.fmin(low[name], ends[0]) if name in low else ends[0]
            high[name] = np.fmax(high[name], ends[1]) if name in high else ends[1]
            if (high[name] > low[name]).any():  # NaN of withheld rows is no value
                return False
    return True
