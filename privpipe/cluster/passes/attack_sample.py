"""What kinds of attack beside inference are given, read on a worker; reports alone come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.statistics.ties import find_ties
from privpipe.attacks.threats.attack_table import Sample, run_kind
from privpipe.attacks.threats.retained_utility import measure_kept
from privpipe.attacks.threats.two_samples import MOST_RECORDS, measure_losses_of_model
from privpipe.capabilities import Promises
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.evidence_sample import (
    draw_sample,
    fill_missing,
    plan_drawing,
    read_groups,
)
from privpipe.cluster.passes.sample_drawing import Drawing, Published, keep_chunk
from privpipe.errors import PrivpipeError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.protocols import FloatArray, IntArray, Shard
from privpipe.records.sampling import take_records
from privpipe.store.collections.collection import Collection
from privpipe.store.models import open_model


@dataclass(frozen=True)
class KindSources:
    """Where the records of the kinds of attack are.

    Parameters
    ----------
    judged
        Held-out records with their release, or to be released by the model.
    learned
        Records that the model was fitted to, in the same way; None where none are held out.
    fresh
        Records of the training collection that the fit never saw, in the same way: what members
        are told from. None where the judged records are these.
    release
        The release itself, where the judged records are not of it; None else.
    model_url, model_digest
        The fitted map.
    published
        What the release tells beside the features.
    cleans
        Whether records that are not of the release are released by the model where they are read.
    place
        Where samples are stored, and the digest of their key.
    """

    judged: Collection
    learned: Collection | None
    release: Collection | None
    model_url: str
    model_digest: str
    published: Published
    cleans: bool
    fresh: Collection | None = None
    place: tuple[str, str] = ("", "")

    def list_drawings(self, options: AttackOptions) -> list[Drawing]:
        """All that the kinds of attack draw, each once."""
        parts = [self.judged, self.learned, self.fresh, self.release]
        return [self.draws(part, options) for part in parts if part is not None]

    def draws(self, collection: Collection, options: AttackOptions) -> Drawing:
        """What is drawn of one of the collections: of those that judge nobody some."""
        if collection is self.judged:
            return plan_drawing(collection, options, self.published, self.place)
        few = replace(options, max_records=min(options.max_records, MOST_RECORDS))
        published = self.published
        if collection is self.release:
            published = Published(withholds=published.withholds)
        elif not self.is_released(collection):
            published = replace(published, included=(), order=False, partitions=False, earlier=())
        return plan_drawing(collection, few, published, self.place)

    @staticmethod
    def is_released(collection: Collection) -> bool:
        """Whether what is released of it is read from the release."""
        return collection.released_url is not None


def list_kinds(sources: KindSources) -> tuple[str, ...]:
    """Kinds of attack that are measured of a release of records."""
    found = ["linkage", "reconstruction"]
    if sources.learned is not None:
        found.append("training_membership")
    if sources.judged.indicators and any(c.is_categorical for c in _hidden(sources)):
        found.append("information")
    if sources.release is not None:
        found.append("drift")
    return tuple(found)


def attack_kind(sources: KindSources, kind: str, options: AttackOptions) -> str:
    """Worker side: draw what a kind of attack needs and run it.

    Returns
    -------
    report
        Of the attack, as JSON: numbers about records, no value of any.
    """
    return run_kind(kind, _MAKERS[kind](sources, options), options).to_json()


def _hidden(sources: KindSources) -> Any:
    return sources.judged.schema.confidential


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
            for _, answer in executor.map_tasks(draw_chunks, tasks, prefix="draw_sample"):
                if isinstance(answer, PrivpipeError):
                    raise answer
                found += answer
            wider = wider.widen(found)


def draw_chunks(drawing: Drawing, chunks: Sequence[int]) -> int:
    """Worker side: store what is drawn of some chunks; how many records that is."""
    return sum(len(keep_chunk(drawing, chunk).words) for chunk in chunks)


def _draw(
    sources: KindSources, collection: Collection, options: AttackOptions, few: int | None = None
) -> Shard:
    """Records of a part, raw and released; withheld ones are left out."""
    named = {"model_url": "", "model_digest": ""}
    if sources.cleans and not sources.is_released(collection):
        named = {"model_url": sources.model_url, "model_digest": sources.model_digest}
    drawn = draw_sample(sources.draws(collection, options), **named)
    if few is not None:
        drawn = drawn.take(np.sort(np.argsort(drawn.words, kind="stable")[:few]))
    return take_records(drawn.shard, np.flatnonzero(~find_empty_rows(drawn.shard.released)))


def _pair(sources: KindSources, options: AttackOptions) -> Sample:
    shard = _draw(sources, sources.judged, options)
    if sources.published.group is None and not sources.judged.indicators:
        ties = find_ties(shard.released, shard.features)
        if ties is not None:  # a record is no better hidden for being there twice
            shard = take_records(shard, np.unique(ties, return_index=True)[1])
    return Sample(
        released=shard.released,
        raw=fill_missing(shard.features),
        groups=read_groups(shard, sources.published),
    )


def _compare_training(sources: KindSources, options: AttackOptions) -> Sample:
    """Records of either side as who has the model and the release sees them."""
    assert sources.learned is not None
    fitted = open_model(sources.model_url)
    predictor = fitted.promise.predictor if isinstance(fitted, Promises) else None
    others = sources.judged if sources.fresh is None else sources.fresh
    sides = [_draw(sources, part, options, MOST_RECORDS) for part in (sources.learned, others)]
    features = np.concatenate([side.features for side in sides])
    labels = np.concatenate([side.desired for side in sides])
    released = np.concatenate([side.released for side in sides]).astype(np.float64)
    raw = np.asarray(fill_missing(features), np.float64)
    losses = measure_losses_of_model(raw, labels, predictor, released)
    table = np.hstack([losses, np.nan_to_num(labels), released])
    n_learned = len(sides[0].features)
    return Sample(learned=table[:n_learned], fresh=table[n_learned:])


def _compare_release(sources: KindSources, options: AttackOptions) -> Sample:
    assert sources.release is not None
    parts = sources.release, sources.judged
    sides = [_draw(sources, part, options, MOST_RECORDS).released for part in parts]
    return Sample(published=_finite(sides[0]), judged=_finite(sides[1]))


def _finite(table: FloatArray) -> FloatArray:
    return np.asarray(table[find_finite_rows(table)], np.float64)


def _tabulate_codes(sources: KindSources, options: AttackOptions) -> Sample:
    """Released codes and confidential classes; numbers have none and are left out."""
    shard, columns = _draw(sources, sources.judged, options), _hidden(sources)
    chosen = [j for j, column in enumerate(columns) if column.is_categorical]
    classes = np.nan_to_num(shard.confidential[:, chosen], nan=-1).astype(np.int64)
    attributes = sources.judged.schema.attributes
    parts: list[IntArray] = []
    first = 0
    for column in attributes:
        block = shard.released[:, first : first + (column.n_categories or 0)]
        first += column.n_categories or 0
        parts.append(np.where(block.any(axis=1), block.argmax(axis=1), -1))
    return Sample(
        codes=np.column_stack(parts),
        classes=classes,
        attributes=tuple(column.name for column in attributes),
        columns=tuple(columns[j] for j in chosen),
    )


_MAKERS: dict[str, Callable[[KindSources, AttackOptions], Sample]] = {
    "linkage": _pair,
    "reconstruction": _pair,
    "training_membership": _compare_training,
    "drift": _compare_release,
    "information": _tabulate_codes,
}


def measure_kept_utility(sources: KindSources, options: AttackOptions) -> list[dict[str, Any]]:
    """Worker side: how well every wanted variable is predicted, raw and released, with limits.

    Returns
    -------
    kept
        A `KeptUtility` per wanted variable as a dictionary; of one that could not be measured its
        name and the reason.

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
            found.append(asdict(measure_kept(evidence, position, options)))
        except PrivpipeError as error:
            found.append({"target": column.name, "reason": error.code})
    return found + [{"target": one.target, "reason": one.reason} for one in evidence.left_out]
