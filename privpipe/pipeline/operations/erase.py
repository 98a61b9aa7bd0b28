"""Erase records: write down what is to be done, do it, certify it.

The journal beside the collection holds places, digests and record numbers, no value of a record;
it is the certificate once all is done. Every step may be done twice, so whoever is killed is
followed by whoever calls again.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from privpipe.errors import PrivpipeError, StoreError, printable
from privpipe.pipeline.operations import record_removal
from privpipe.pipeline.operations.record_removal import ChosenRecords, ErasureSurvey
from privpipe.pipeline.operations.traces import Trace, Traces, find_traces, say_missing
from privpipe.pipeline.runs.run import now
from privpipe.report.audit_text import read_texts
from privpipe.store.access import workspace
from privpipe.store.access.generation_log import blank_older, publish_generation
from privpipe.store.access.location import local_path, shown
from privpipe.store.access.objects import keep_bytes, list_keys, open_store, read_bytes
from privpipe.store.arrays.layout import companion_url
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.keys import forget_key
from privpipe.store.keyring.keys import list_keys as list_draw_keys
from privpipe.store.keyring.registers import note_erasure
from privpipe.store.keyring.sketches import Sketches
from privpipe.store.releases import incremental_release as incremental

# Said in every certificate: who reads it must not take it for more than it is.
LEFT_BEHIND: Sequence[str] = read_texts("words.yaml")["left_behind"]
"""What no command reaches, or what stays on purpose."""

# A run that begins after the collection changed cannot read the records: few rounds suffice.
MOST_ROUNDS = 5
"""How often what runs made meanwhile is looked for again."""


@dataclass(frozen=True)
class ErasureOptions:
    """How to erase.

    Parameters
    ----------
    account
        Of the register of releases; by default as for runs.
    roots
        Places below which everything is looked at; the folder of the collection by default.
    name
        Who erases; by default the user.
    """

    account: str = ""
    roots: tuple[str, ...] = ()
    name: str = ""


def plan_erasure(url: str, chosen: ChosenRecords, options: ErasureOptions) -> dict[str, Any]:
    """Say what an erasure would do, and change nothing; parameters, errors: see `erase_records`."""
    url = _place(url)
    journal = _begin(url, chosen, record_removal.survey_records(url, chosen), options)
    traces = _look(url, journal, chosen)
    found = traces.found.values() if journal["survey"]["held"] else ()
    return _certify(journal | {"traces": [asdict(one) for one in found]}, traces)


def erase_records(url: str, chosen: ChosenRecords, options: ErasureOptions) -> list[dict[str, Any]]:
    """Erase records from a collection and from all that was made of it and can be found.

    Parameters
    ----------
    url
        The collection, made in one piece or growing.
    chosen
        Which records.
    options
        See `ErasureOptions`.

    Returns
    -------
    certificates
        Of the erasure that was interrupted before, if there is one, and of this one. Each says what
        was removed, when, by whom, digests before and after, and what is left. None where the
        collection holds no such record.

    Raises
    ------
    OptionError
        If the records cannot be named like this.
    StoreError
        If a run writes what would have to go: nothing is changed then.
    """
    url = _place(url)
    with workspace.hold_workspace(url):
        try:
            done = _erase_held(url, chosen, options)
        except PrivpipeError:
            if _find_begun(url) is None:  # else what is half made is in it
                workspace.remove_workspace(url)
            raise
        workspace.remove_workspace(url)
    return done


def _erase_held(url: str, chosen: ChosenRecords, options: ErasureOptions) -> list[dict[str, Any]]:
    """End what was begun, then erase; for who holds the collection."""
    done = []
    if (journal := _find_begun(url)) is not None:
        done.append(_carry_out(url, journal, chosen))
    # Of an emptied collection none is left.
    if done and not record_removal.digest_of(url):
        return done
    survey = record_removal.survey_records(url, chosen)
    if survey.held:
        journal = _begin(url, chosen, survey, options)
        _check_idle(_look(url, journal, chosen).found.values())
        _write(url, journal)
        done.append(_carry_out(url, journal, chosen))
    return done


def _begin(
    url: str, chosen: ChosenRecords, survey: ErasureSurvey, options: ErasureOptions
) -> dict[str, Any]:
    # A container's user may have a number alone.
    user = os.environ.get("LOGNAME") or os.environ.get("USER") or f"user {os.getuid()}"
    roots = options.roots or (url.rstrip("/").rpartition("/")[0],)
    known = {digest for held in survey.held for digest in held.digests}
    return {
        "format_version": 1,
        "id": secrets.token_hex(8),
        "state": "begun",
        "begun": now(),
        "by": printable(options.name.strip()) or user,
        "collection": url,
        "chosen": f"values of {chosen.name!r}",
        "n_records": survey.n_records,
        "account": find_account(options.account or None),
        "roots": [_place(root) for root in roots],
        "before": record_removal.digest_of(url),
        # Digests alone: a journal that held values would be one more copy of what is erased.
        "known": sorted({*known, record_removal.digest_of(url)}),
        "survey": asdict(survey),
        "traces": [],
        "keys": [],
    }


def _carry_out(url: str, journal: dict[str, Any], chosen: ChosenRecords) -> dict[str, Any]:
    """All steps, from the first; those that were done change nothing."""
    # The collection first: from then on no run can read the records, and what runs have made
    # meanwhile is found by the rounds below. The certificate last, noted in the account's chain
    # before the journal that held the way back is replaced by it.
    survey = TypeAdapter(ErasureSurvey).validate_python(journal["survey"])
    record_removal.take_out(url, survey)
    traces = _remove_all(url, journal, chosen)
    _forget_draws(url, journal, survey)
    record_removal.drop_erased(url)
    done = {digest: one for digest, one in _read_all(url).items() if one.get("state") == "done"}
    # The one that no other names: by its time a clock that went back makes an older one the last.
    certificate = {
        **_certify(journal, traces),
        "state": "done",
        "ended": now(),
        "after": record_removal.digest_of(url),
        # SHA-256 of the last certificate: what was certified is one chain.
        "previous": max(done.keys() - {one.get("previous") for one in done.values()}, default=""),
    }
    stored = dict(note_erasure(journal["account"], journal["id"], certificate))
    _write(url, stored)
    return stored


def _remove_all(url: str, journal: dict[str, Any], chosen: ChosenRecords) -> Traces:
    """Remove what was made of the records, until nothing new is found."""
    for _ in range(MOST_ROUNDS):
        traces = _look(url, journal, chosen)
        there = {(one["what"], one["place"], *one["parts"]) for one in journal["traces"]}
        found = traces.found.values()
        new = [asdict(one) for one in found if (one.what, one.place, *one.parts) not in there]
        # Written before it is removed: what is gone cannot be found again by whoever resumes after
        # a kill, and would be missing from the certificate.
        journal["traces"] += new
        _write(url, journal)
        for one in journal["traces"]:
            _remove(Trace(**{**one, "parts": tuple(one["parts"])}), journal["known"])
        if not new:
            return traces
    problem = "Runs keep making releases of the records that are erased."
    remedy = "Stop them, then give the same command again: it resumes."
    raise StoreError(problem, remedy=remedy, code="busy")


def _look(url: str, journal: Mapping[str, Any], chosen: ChosenRecords) -> Traces:
    def count(place: str) -> int:
        """Records of another collection that are chosen alike."""
        with suppress(PrivpipeError):
            return record_removal.survey_records(place, chosen).n_records
        return 0

    return find_traces(journal["known"], journal["account"], journal["roots"], url, count)


def _remove(trace: Trace, known: Iterable[str]) -> None:
    if trace.what == "workspace":
        workspace.purge_workspace(trace.place)
    elif trace.what == "parts":
        _withdraw(trace, known)
    else:
        workspace.remove_place(trace.place.rstrip("/"))


def _withdraw(trace: Trace, known: Iterable[str]) -> None:
    """Take parts out of an incremental release, then delete them; its former generations go.

    A release of a model that learned from the records loses all its parts, and what its generation
    says of the line. The next run begins a new line.
    """
    url, gone = trace.place, set(trace.parts)
    with workspace.hold_workspace(url):
        found, ledger = incremental.read_incremental(url), incremental.PrivateLedger(url)
        if found is not None:
            before, state = found
            # The ledger's own names of the contents: the generation holds no other.
            marks = {ledger.mark_content(one) for one in known}
            mine = [one.content for one in state.parts if one.content in marks]
            following = replace(
                state,
                parts=tuple(one for one in state.parts if one.id not in gone),
                retired=tuple(one for one in state.retired if one.id not in gone),
                withdrawn=tuple(dict.fromkeys((*state.withdrawn, *mine))),
            )
            if not following.parts:
                following = _blank(following)
            # The same again makes no generation.
            if following.encode() != state.encode():
                before = publish_generation(url, "release", following.encode(), before)
            # Emptied, not deleted: a root that lags still leads through them to the newest.
            blank_older(url, before)
        for part in sorted(gone):
            incremental.delete_part(url, part)
            workspace.purge_workspace(incremental.part_url(url, part))
        ledger.forget(gone, lines=trace.why == "learned")
        workspace.remove_workspace(url)


def _blank(state: incremental.IncrementalState) -> incremental.IncrementalState:
    """A release without parts, and without what was said of them."""
    arrays = tuple({**one, "attributes": {}} for one in state.arrays)
    rest = {key: state.header[key] for key in ("method", "method_source") if key in state.header}
    return replace(state, line="", header=rest, arrays=arrays)


def _forget_draws(url: str, journal: dict[str, Any], survey: ErasureSurvey) -> None:
    """Destroy the keys of draws for the records, and their words in the sketches."""
    due = {one.key_id for one in list_draw_keys() if one.binding.source in journal["known"]}
    # Noted first, as traces are: whoever resumes after a kill destroys the rest of the same keys.
    journal["keys"] = sorted({*journal["keys"], *due})
    _write(url, journal)
    # Whoever has the key can subtract the noise from what readers have.
    for key_id in journal["keys"]:
        forget_key(key_id)
    sketches = Sketches(journal["account"])
    for held in survey.held:
        for digest, rows in held.partitions.items():
            sketches.blank(digest, rows)


def _certify(journal: Mapping[str, Any], traces: Traces) -> dict[str, Any]:
    """What was done, without record numbers; and what is left."""
    gone = {say_missing(one["place"]) for one in journal["traces"]}  # by this very erasure
    return {
        **{key: one for key, one in journal.items() if key not in ("survey", "known", "traces")},
        "partitions": [one["digests"][1] for one in journal["survey"]["held"]],
        "removed": journal["traces"],
        "left": [*(one for one in traces.left if one not in gone), *LEFT_BEHIND],
    }


def _check_idle(traces: Iterable[Trace]) -> None:
    """Refuse before anything is changed where a run writes what has to go."""
    for trace in traces:
        places = [trace.place, *(incremental.part_url(trace.place, one) for one in trace.parts)]
        if any(map(workspace.is_held, places)):
            problem = f"A run is writing {shown(trace.place)}, which is made of these records."
            remedy = "Nothing was changed. Stop it, or wait for its end, then erase."
            raise StoreError(problem, remedy=remedy, code="busy")


def _place(url: str) -> str:
    path = local_path(url)
    return url.rstrip("/") if path is None else path


def _journals(url: str) -> str:
    return companion_url(url, "erasures")


def _read_all(url: str) -> dict[str, dict[str, Any]]:
    """Journals and certificates, by digest."""
    store = open_store(_journals(url), read_only=True)
    # Whatever else lies there is none of ours.
    names = [key for key in list_keys(store) if re.fullmatch(r"[0-9a-f]{16}\.json", key)]
    contents = [read_bytes(store, key) or b"{}" for key in names]
    return {hashlib.sha256(one).hexdigest(): json.loads(one) for one in contents}


def _find_begun(url: str) -> dict[str, Any] | None:
    return next((one for one in _read_all(url).values() if one.get("state") == "begun"), None)


def _write(url: str, journal: Mapping[str, Any]) -> None:
    # Flushed before the step that it announces.
    keep_bytes(_journals(url), f"{journal['id']}.json", json.dumps(journal, indent=1).encode())
