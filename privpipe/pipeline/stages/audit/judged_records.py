"""Which records judge a release, and what of it no judged record shows.

The records that are released judge it: those that the fit never saw, or all of them where the fit
learned from others. Where they carry no labels, training records that are cleaned alike represent
their features. The rest of the release is unproven, unless the operator vouches for it by name.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence, LeftOut
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.attack_tasks import distribute_attacks
from privpipe.errors import InputError, MemoryBudgetError
from privpipe.pipeline.runs.run import Run, find_training
from privpipe.records.sampling import Split, make_split
from privpipe.report.audit_text import say
from privpipe.store.collections.collection import Collection
from privpipe.store.releases.release_writing import ReleasePlan


def find_labelled(run: Run) -> Collection | None:
    """The released records with their labels, where the fit learned from others; None without.

    All confidential variables must be there, and the subject where one is named. None of the
    partitions may be one that the fit learned from.
    """
    subject = run.options.collection.subject
    needed = (*run.training.confidential, *(() if subject is None else (subject,)))
    if run.trains_on_itself or not run.training.confidential or not _has(run, needed):
        return None
    # A partition that the fit saw flatters the release: it is no record of others.
    if _share_partitions(run):
        return None
    desired = run.training.desired if _has(run, run.training.desired) else ()
    return replace(run.collection, desired=desired, confidential=run.training.confidential)


def _share_partitions(run: Run) -> bool:
    """Whether a released partition is one that the model was trained on."""
    learned, released = (
        {part.digest for part in one.schema_of_records.partitions if part.digest}
        for one in (run.training, run.collection)
    )
    return bool(learned & released)


def find_test(run: Run) -> tuple[Collection, Split] | None:
    """Released records that judge what the fit predicts, and how they are cut into parts.

    None where the training records do: those released lack a desired variable, or have others of
    its categories.
    """
    found = find_labelled(run)
    names = (*run.training.desired, *run.training.confidential)
    if found is None or not _has(run, names, alike=True):
        return None
    return found, make_split(1.0, run.options.collection.subject)


def list_unjudged(run: Run) -> list[LeftOut]:
    """What is released and no labelled record of the release shows; vouched for, it is left out."""
    if run.trains_on_itself or find_labelled(run) is not None:
        return []
    vouched, why = run.options.audit.vouched, "the released records carry too few labels. "
    why += "Ingest some with the confidential variables"
    if _share_partitions(run):
        why = "the model was trained on a released partition. Train on other records"
    return [
        LeftOut(
            name,
            f"{what} is released, and was not judged: {why}, or name {name} in [audit] vouched.",
        )
        for name, what in _list_shown(run)
        if name not in vouched
    ]


def _list_shown(run: Run) -> Iterator[tuple[str, str]]:
    """Names of what is released beside the features."""
    for name in run.options.release.include:
        yield name, f"The included variable {name!r}"
    yield "order", "The order of the records"
    if run.options.release.partitions:
        yield "partitions", "How many records each partition has"
    if run.may_withhold:
        yield "withheld", "Which records are withheld"


def describe_basis(run: Run) -> str:
    """Which records were judged, in a sentence or two."""
    if find_labelled(run) is not None:
        return say("basis_labelled", tested=find_test(run) is not None)
    return say(
        "basis",
        on_itself=run.trains_on_itself,
        learned_elsewhere=find_training(run) != run.training.digest,
        share=run.options.audit.holdout,
        group=run.split.group,
        unjudged=() if run.trains_on_itself else [name for name, _ in _list_shown(run)],
        unnamed=run.options.collection.subject is not None,
    )


def _has(run: Run, names: tuple[str, ...], *, alike: bool = False) -> bool:
    """Whether the released records have variables of the same kinds, or of equal categories."""
    mine, theirs = (
        {variable.name: variable.categories for variable in one.schema_of_records.variables}
        for one in (run.collection, run.training)
    )
    for name in names:
        if not {name} <= mine.keys() & theirs.keys():
            return False
        # Codes mean the category of that number: other categories, other labels.
        if (mine[name] is None) != (theirs[name] is None) or (alike and mine[name] != theirs[name]):
            return False
    return True


def pair_released(collection: Collection, plan: ReleasePlan) -> Collection:
    """The records with what the release that is being written holds of them."""
    return replace(
        collection, released_url=plan.data_url, released_run=plan.run, released_basis=plan.basis
    )


def attack_variables(
    run: Run,
    executor: Executor,
    sample: Callable[[], Evidence],
    options: AttackOptions,
    *,
    unread: Iterable[LeftOut] = (),
    n_released: int = 0,
) -> dict[str, Any]:
    """Findings of every adversary on a sample that a worker prepares; a failure is unknown.

    Parameters
    ----------
    run, executor
        What is judged, and who works.
    sample
        Prepares the evidence.
    options
        With the limits.
    unread
        What is released and no record of the sample shows.
    n_released
        Records of the release.
    """
    if not (run.training.confidential and run.options.audit.adversaries):
        return report_nothing("no adversary was requested")
    known = run.checkpoints
    try:
        report = distribute_attacks(
            executor,
            sample,
            options=options,
            checkpoints=known,
            power=True,
            n_released=n_released,
            # What is not gated is measured whole; a leak keeps any other release from going out.
            ends_early=run.options.gate.enforce and not run.whole_audit,
        )
    except (InputError, MemoryBudgetError) as error:
        return report_nothing(str(error))
    report = replace(report, left_out=(*report.left_out, *unread))
    return cast(dict[str, Any], json.loads(report.to_json()))


def report_nothing(reason: str, verdict: str = "unknown") -> dict[str, Any]:
    """Findings of adversaries, where none decides."""
    return {"verdict": verdict, "reason": reason, "decisions": []}
