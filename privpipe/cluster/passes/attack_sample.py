"""What attacks beside inference are given, read on a worker; reports alone come back.

Which are measured of a release follows from the table: those whose needs something here provides.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.statistics.ties import find_ties
from privpipe.attacks.threats.attack_table import ATTACKS, Sample, run_by_name
from privpipe.attacks.threats.paired_training import measure_retained
from privpipe.attacks.threats.two_samples import MOST_COMPARED, measure_losses_of_model
from privpipe.capabilities import Promises
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.evidence_sample import AuditSources, fill_missing, read_groups
from privpipe.cluster.passes.sample_drawing import Drawing, keep_chunk
from privpipe.errors import PrivpipeError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.protocols import IntArray, Shard
from privpipe.records.sampling import take_records
from privpipe.store.collections.collection import Collection
from privpipe.store.models import open_model


@dataclass(frozen=True)
class _Provider:
    """How some fields of a `Sample` are read of the records of an audit.

    Parameters
    ----------
    provides
        The fields.
    suits
        Whether the records have them.
    read
        ``read(sources, options)``; a sample.
    """

    provides: frozenset[str]
    suits: Callable[[AuditSources], bool]
    read: Callable[[AuditSources, AttackOptions], Sample]


def list_measured(sources: AuditSources) -> tuple[str, ...]:
    """Attacks that are measured of a release of records, in the order of the table."""
    return tuple(name for name in ATTACKS if _find_provider(name, sources) is not None)


def attack_by_name(sources: AuditSources, name: str, options: AttackOptions) -> str:
    """Worker side: draw what an attack needs and run it.

    Returns
    -------
    report
        Of the attack, as JSON: numbers about records, no value of any.
    """
    provider = _find_provider(name, sources)
    assert provider is not None, "the driver has listed it"
    return run_by_name(name, provider.read(sources, options), options).to_json()


def _find_provider(name: str, sources: AuditSources) -> _Provider | None:
    needs = set(ATTACKS[name].needs)
    return next((one for one in _PROVIDERS if needs <= one.provides and one.suits(sources)), None)


def draw_missing(executor: Executor, drawings: Sequence[Drawing]) -> None:
    """Draw of every chunk what is drawn of it and not stored yet: nothing where cleaning did."""
    for number, drawing in enumerate(drawings):
        wider: Drawing | None = drawing
        while wider is not None:
            tasks = (
                (f"{number}-{wider.widened:g}-{chunks[0]:06d}", (wider, chunks))
                for chunks in wider.collection.plan.tasks()
            )
            found = 0
            for _, n_drawn in executor.map_tasks(draw_chunks, tasks, prefix="draw_sample"):
                if isinstance(n_drawn, PrivpipeError):
                    raise n_drawn
                found += n_drawn
            wider = wider.widen(found)


def draw_chunks(drawing: Drawing, chunks: Sequence[int]) -> int:
    """Worker side: store what is drawn of some chunks; how many records that is."""
    return sum(len(keep_chunk(drawing, chunk).words) for chunk in chunks)


def _draw(
    sources: AuditSources, collection: Collection, options: AttackOptions, few: int | None = None
) -> Shard:
    """Records of a part, raw and released; withheld ones are left out."""
    drawn = sources.draw(collection, options)
    if few is not None:
        drawn = drawn.take(np.sort(np.argsort(drawn.words, kind="stable")[:few]))
    return take_records(drawn.shard, np.flatnonzero(~find_empty_rows(drawn.shard.released)))


def _read_pairs(sources: AuditSources, options: AttackOptions) -> Sample:
    """Raw and released records, row by row."""
    shard = _draw(sources, sources.judged, options)
    # Codes are equal by nature: of tables of classes no record is left out for having an equal.
    if sources.published.group is None and not sources.judged.indicators:
        ties = find_ties(shard.released, shard.features)
        if ties is not None:  # a record is no better concealed for being there twice
            shard = take_records(shard, np.unique(ties, return_index=True)[1])
    return Sample(
        released=shard.released,
        raw=fill_missing(shard.features),
        groups=read_groups(shard, sources.published),
    )


def _read_members(sources: AuditSources, options: AttackOptions) -> Sample:
    """Records of either side as who has the model and the release sees them."""
    assert sources.learned is not None
    fitted = open_model(sources.model.url)
    predictor = fitted.promise.predictor if isinstance(fitted, Promises) else None
    others = sources.judged if sources.fresh is None else sources.fresh
    sides = [_draw(sources, part, options, MOST_COMPARED) for part in (sources.learned, others)]
    features = np.concatenate([side.features for side in sides])
    labels = np.concatenate([side.desired for side in sides])
    released = np.concatenate([side.released for side in sides]).astype(np.float64)
    # Both sides are measured as one table: what differs may be the records, never the measuring.
    raw = np.asarray(fill_missing(features), np.float64)
    losses = measure_losses_of_model(raw, labels, predictor, released)
    table = np.hstack([losses, np.nan_to_num(labels), released])
    n_learned = len(sides[0].features)
    return Sample(learned=table[:n_learned], fresh=table[n_learned:])


def _read_populations(sources: AuditSources, options: AttackOptions) -> Sample:
    """Records of the release, and the released records that judged it."""
    assert sources.release is not None
    tables = [
        _draw(sources, part, options, MOST_COMPARED).released
        for part in (sources.release, sources.judged)
    ]
    first, second = (table[find_finite_rows(table)].astype(np.float64) for table in tables)
    return Sample(published=first, judged=second)


def _read_codes(sources: AuditSources, options: AttackOptions) -> Sample:
    """Released codes and confidential classes; numbers have none and are left out."""
    shard, columns = _draw(sources, sources.judged, options), sources.judged.schema.confidential
    chosen = [j for j, column in enumerate(columns) if column.is_categorical]
    attributes = sources.judged.schema.attributes
    ends = np.cumsum([column.n_categories or 0 for column in attributes])
    # A row without any indicator is a missing value, which an outsider sees as such.
    parts: list[IntArray] = [
        np.where(block.any(axis=1), block.argmax(axis=1), -1)
        for block in np.split(shard.released, ends[:-1], axis=1)
    ]
    return Sample(
        codes=np.column_stack(parts),
        classes=np.nan_to_num(shard.confidential[:, chosen], nan=-1).astype(np.int64),
        attributes=tuple(column.name for column in attributes),
        columns=tuple(columns[j] for j in chosen),
    )


_PROVIDERS = (
    _Provider(frozenset(("released", "raw", "groups")), lambda _: True, _read_pairs),
    _Provider(frozenset(("learned", "fresh")), lambda one: one.learned is not None, _read_members),
    _Provider(
        frozenset(("codes", "classes", "attributes", "columns")),
        lambda one: (
            one.judged.indicators
            and any(column.is_categorical for column in one.judged.schema.confidential)
        ),
        _read_codes,
    ),
    _Provider(
        frozenset(("published", "judged")), lambda one: one.release is not None, _read_populations
    ),
)


def measure_retained_utility(sources: AuditSources, options: AttackOptions) -> list[dict[str, Any]]:
    """Worker side: how well every desired variable is predicted, raw and released, with limits.

    Returns
    -------
    found
        A `RetainedUtility` per desired variable as a dictionary; of one that could not be measured
        its name and the reason.

    Raises
    ------
    InputError
        If the sample is too small, or no variable varies.
    """
    shard, columns = _draw(sources, sources.judged, options), sources.judged.schema.desired
    evidence = prepare_evidence(
        shard.released,
        shard.desired,
        raw=fill_missing(shard.features),
        columns=columns,
        groups=read_groups(shard, sources.published),
        ties=not sources.judged.indicators,
        options=options,
    )
    found: list[dict[str, Any]] = []
    for position, column in enumerate(evidence.columns):
        try:
            found.append(asdict(measure_retained(evidence, position, options)))
        except PrivpipeError as error:
            found.append({"target": column.name, "reason": error.code})
    return found + [{"target": one.target, "reason": one.reason} for one in evidence.left_out]
