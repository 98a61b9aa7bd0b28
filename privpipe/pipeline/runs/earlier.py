"""Earlier releases of a run's records: those that are named, and those that the register knows.

Whoever holds two releases of the same records joins them row by row. Whoever holds two models of
nearly the same records takes their difference, which is one record. Every run notes its release in
the register beside the account before it becomes visible. So the next run finds it, whatever file
the records are in by then.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from privpipe.attacks.adversaries.evidence import LeftOut
from privpipe.errors import PrivpipeError, StoreError
from privpipe.numerics.moments import name_targets
from privpipe.numerics.random.record_overlap import Overlap
from privpipe.pipeline.runs.run import Run, now
from privpipe.report.audit_text import say
from privpipe.store.access.location import local_path, shown
from privpipe.store.arrays.layout import companion_url, exists, read_header
from privpipe.store.keyring.account_chain import AccountChain, reaching
from privpipe.store.keyring.registers import Registered, align_rows, read_releases, register_release
from privpipe.store.releases import published
from privpipe.store.releases.published import EarlierRelease, holds_the_same
from privpipe.store.releases.release_writing import ReleasePlan, read_ledger


@dataclass(frozen=True)
class Earlier:
    """What is known of earlier releases.

    Parameters
    ----------
    releases
        Those that are joined with this one.
    unread
        Those that are there and cannot be read: what they reveal is unknown.
    warnings
        A sentence for each that is not at its place.
    """

    releases: tuple[EarlierRelease, ...] = ()
    unread: tuple[LeftOut, ...] = ()
    warnings: tuple[str, ...] = ()


def find_earlier(run: Run, plan: ReleasePlan | None = None) -> Earlier:
    """The releases named by ``[audit] earlier``, and those the register knows of these records.

    Parameters
    ----------
    run
        Whose records are to be released.
    plan
        Of the release that is judged, where its records are written: an earlier one of the very
        same reveals nothing more.

    Raises
    ------
    StoreError, FormatError, IncompleteReleaseError
        If a named release cannot be read, or the register.
    OptionError
        If a named release is of other records.
    """
    found, entries = open_named(run)
    # A named release may be a registered one that was moved: it is joined once.
    named = {one.run for one in found}
    unread, warnings = list[LeftOut](), list[str]()
    for entry in entries:
        if entry.run in named:
            continue
        if _is_disowned(run, entry):
            warnings.append(f"The earlier release {entry.name} was disowned, and not joined.")
            continue
        known, same, why = None, False, GONE
        try:
            with reaching(entry.url):
                if exists(entry.url):
                    known = _open(run, entry, entry.url, [one.name for one in found])
                    same = plan is not None and holds_the_same(known.url, read_ledger(plan))
        except PrivpipeError as error:
            known = None
            ways = f"{error.remedy} " * (error.code == "row-order") + WAYS
            why = f"{HELD}and cannot be read ({error.code}). {ways}"
        # Unknown never passes: a release that is not at its place may still have readers, and
        # another one may have taken the place since.
        if known is None or known.run != entry.run:
            unread.append(LeftOut(entry.name, why))
        elif not same:
            found.append(known)
    return Earlier(tuple(found), tuple(unread), tuple(warnings))


def open_named(run: Run) -> tuple[list[EarlierRelease], list[Registered]]:
    """The releases of ``[audit] earlier``, and what the register knows of these records.

    What is named is refused where no audit could read it; see `find_earlier`.
    """
    if run.method.releases == "surrogate":  # whose rows are no one's: no row joins another
        find_named_surrogates(run)
        return [], []
    found, entries = list[EarlierRelease](), _list_registered(run)
    for url in run.options.audit.earlier:
        found += _open_named(run, url, entries, [one.name for one in found])
    return found, entries


WAYS = "Name its place in [audit] earlier; if lost or of other people, its run in [audit] disowned."
HELD = "it is a release of these records, or of equal ones of other people, "
GONE = HELD + "by the register, and no longer at its place. " + WAYS


def find_differences(run: Run, model_digest: str) -> list[str]:
    """Earlier models whose difference from this one would reveal single records, in sentences.

    And earlier releases of which it is not known whether they hold these records.

    The difference of two means, or of any sums, over nearly the same records is made of the few
    records that only one saw. None where the model is the same, where the records are, or where a
    model reveals nothing of records that are not public. Nor where it holds noisy sums: what these
    add to any other knowledge of a record is in the account.

    Raises
    ------
    StoreError, FormatError
        If the register or a sketch cannot be read.
    """
    if run.method.releases == "surrogate" and run.options.method.consumes() is not None:
        return []
    entries = [one for one in _read_register(run) if not _is_disowned(run, one)]
    digests = {one: {d for d, n in one.partitions if n} | {*one.training} for one in entries}
    # Of records that were never sketched, or whose sketch is lost.
    missing = set(run.sketches.find_missing(set().union(*digests.values())))
    unknown = [one for one in entries if digests[one] & missing]
    met: dict[str, list[tuple[str, float]]] = {}
    for entry, overlap in _list_different(run):
        if entry.model != model_digest:
            kind = "differs_profiles" if overlap.by_profile else "differs_model"
            met.setdefault(kind, []).append((entry.name, overlap.other))
    return [say("differs_unknown", name=entry.name) for entry in unknown] + [
        say(kind, names=[name for name, _ in some], share=max(share for _, share in some))
        for kind, some in met.items()
    ]


def find_model(run: Run) -> str | None:
    """Where the model of an earlier release is that this one has to be made by; None if none is.

    That of the newest release whose model was learned likewise from nearly, but not exactly, the
    same records. Of noisy moments, from exactly the same: they cost nothing when they are used
    again, and other noise would.
    """
    if run.method.releases != "surrogate":
        known = [entry for entry, _ in _list_different(run)]
    elif run.options.method.consumes() is None:
        return None
    else:
        mine = {p.digest for p in run.training.schema_of_records.partitions if p.n_records}
        known = [one for one in _read_register(run) if {*one.training} == mine]
    return _find_stored(run, known) if known else None


def find_growth(run: Run) -> str | None:
    """Where the model is that was learned likewise from most of the first of these partitions."""
    mine = tuple(one.digest for one in run.training.schema_of_records.partitions if one.n_records)
    begun = [one for one in _read_register(run) if one.training == mine[: len(one.training)]]
    return _find_stored(run, sorted(begun, key=lambda one: len(one.training)))


def _find_stored(run: Run, known: Sequence[Registered]) -> str | None:
    """Model of the last of some releases that was learned likewise, if it is where it was."""
    learned = digest_learned(run)
    # Models beside releases that are named, by the run that made them: these may have been moved.
    moved = {
        str(read_header(url, "release")["run"]): companion_url(url, "model.zarr")
        for url in run.options.audit.earlier
        if exists(url)
    }
    for entry in reversed(known):  # the newest first
        if entry.learned == learned and entry.model:
            for url in (entry.model_url, moved.get(entry.run, "")):
                with suppress(StoreError), reaching(url):  # then the models differ, which is said
                    if url and exists(url) and read_header(url, "model")["digest"] == entry.model:
                        return url
    return None


def _list_different(run: Run) -> list[tuple[Registered, Overlap]]:
    """Releases whose model saw some, but not all and only, of the records of this one's fit.

    With what most is in common; by profile where nothing else is.
    """
    mine = {part.digest for part in run.training.schema_of_records.partitions if part.n_records}
    if not mine or run.training.public:
        return []
    ties = run.sketches.ties()
    found = []
    for entry in _read_register(run):
        theirs = set(entry.learned_from)
        # Of the very same records two models differ by their options, not by a record.
        if entry.bound == "public" or theirs == mine or _is_disowned(run, entry):
            continue
        if overlaps := [ties.between(a, b) for a in mine for b in theirs if ties.meet(a, b)]:
            found.append((entry, max(overlaps, key=lambda one: (not one.by_profile, one.other))))
    return found


def digest_learned(run: Run) -> str:
    """SHA-256 of all that decides what is learned, but the records themselves."""
    collection, audit = run.options.collection, run.options.audit
    content = {
        "method": run.method_options(),
        **collection.model_dump(include={"desired", "confidential", "weights", "standardise"}),
        "layout": run.options.release.layout,
        "nonfinite": run.options.release.nonfinite,
        "features": run.training.schema_of_records.feature_names,
        "n_features": run.training.schema_of_records.n_features,
        "holdout": [audit.holdout, collection.subject],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_disowned(run: Run, entry: Registered) -> bool:
    """Whether the operator says that no one has a copy: by run, name or place."""
    return any(
        one in (entry.run, entry.name, entry.url) or entry.url.startswith(f"{one}/")
        for one in run.options.audit.disowned
    )


def count_earlier(run: Run) -> int:
    """How many earlier releases an audit will join with this one, at most."""
    return len({*run.options.audit.earlier, *(one.url for one in _list_registered(run))})


def note_release(run: Run, model_digest: str, *, incremental: bool = False) -> AccountChain:
    """Enter the release of a run into the register, before anybody can see it; the chain then.

    Raises
    ------
    StoreError
        If that cannot be written; then nothing may be published.
    """
    partitions = run.collection.schema_of_records.partitions
    learned = run.training.schema_of_records.partitions
    disowned = run.options.audit.disowned
    return register_release(
        run.sketches.account,
        Registered(
            url=_place(run.release_url),
            run=run.run_id,
            method=run.method.name,
            source="" if incremental else run.collection.digest,
            time=now(),
            partitions=tuple((part.digest, part.n_records) for part in partitions if part.digest),
            training=tuple(part.digest for part in learned if part.n_records),
            model=model_digest,
            model_url=_place(run.model_url),
            learned=digest_learned(run),
            # What the model may reveal of the records: nothing where they are public.
            bound="public" if run.training.public else "learned",
            rows=run.method.releases != "surrogate",
        ),
        # Noted in the chain, too: who disowned a release cannot say later that it was joined.
        {"run": run.run_id, "disowned": list(disowned)} if disowned else None,
    )


def _place(url: str) -> str:
    return local_path(url) or shown(url)


def _read_register(run: Run) -> list[Registered]:
    """Entries of other runs than this one."""
    return [one for one in read_releases(run.sketches.account) if one.run != run.run_id]


def _list_registered(run: Run) -> list[Registered]:
    """Those that hold records of this one; none of surrogates, whose rows are no one's."""
    if run.method.releases == "surrogate":
        return []
    entries, ties = [one for one in _read_register(run) if one.rows], run.sketches.ties()
    mine = {part.digest for part in run.collection.schema_of_records.partitions}
    return [one for one in entries if any(ties.meet(a, b) for a in mine for b, _ in one.partitions)]


def _open_named(
    run: Run, url: str, entries: Sequence[Registered], names: list[str]
) -> list[EarlierRelease]:
    """A release that is named; of other records only where the register knows that they are not.

    Before the records have a sketch that is not known yet, and none is joined.
    """
    made_by = read_header(url, "release").get("run") if exists(url) else None
    for entry in entries:
        if entry.run == made_by:
            return [_open(run, entry, url, names)]
    mine = {part.digest for part in run.collection.schema_of_records.partitions}
    noted = any(one.run == made_by for one in _read_register(run))
    if noted and not mine <= run.sketches.known().keys():
        return []
    return [_open(run, None, url, names)]


def _open(run: Run, entry: Registered | None, url: str, names: list[str]) -> EarlierRelease:
    records, rows = run.collection, None
    source = records.digest if entry is None else entry.source
    # Records of the same collection have the same numbers; all others are aligned by sketches.
    if entry is not None and source != records.digest:
        rows = align_rows(entry, records.schema_of_records.partitions, run.sketches)
    n_records = records.n_records if entry is None else entry.n_records
    found = published.open_earlier_release(url, source_digest=source, n_records=n_records)
    name = found.name if found.name not in names else f"{found.name} {len(names)}"
    return replace(found, name=name, rows=rows)


def find_named_surrogates(run: Run) -> tuple[EarlierRelease, ...]:
    """The releases named by ``[audit] earlier``, of records that overlap with those of the run.

    Raises
    ------
    StoreError, FormatError, IncompleteReleaseError
        If one cannot be read.
    OptionError
        If one is none of surrogates with the same columns.
    """
    schema = run.training.schema
    # The features of surrogates end with a bias.
    return tuple(
        published.open_earlier_surrogates(
            url,
            feature_names=(*schema.named_features, "bias"),
            response_names=name_targets(schema.desired),
        )
        for url in dict.fromkeys(run.options.audit.earlier)
    )
