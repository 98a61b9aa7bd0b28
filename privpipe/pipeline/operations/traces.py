"""What was made of some records: by the register, by what each place says of itself, by its name.

Records are known by digests alone: of collections, partitions and their contents. Below the roots
stores are found by their headers, workspaces and exports by name. Nothing is believed but where it
is, and what lies within a store or a workspace is not looked at. What does not say where it is from
is left, and named.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from privpipe.errors import PrivpipeError
from privpipe.store.access import workspace
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.objects import list_keys, list_names, open_store, read_bytes
from privpipe.store.arrays.layout import ROOT_DOCUMENT, companion_url, exists
from privpipe.store.keyring.registers import Registered, read_exports, read_releases
from privpipe.store.releases import incremental_release as incremental

# A workspace that is being removed has a name of its own.
WORKSPACE = re.compile(r"\.(?P<name>.+?)\.privpipe(\.removed-[0-9a-f]+)?")
GENERATIONS = "generations"


FoundPlace = tuple[str, str, Mapping[str, Any]]
"""What something of ours is, where, and what it says of itself.

A workspace is found at the place that it belongs to.
"""


def find_ours(root: str) -> Iterator[FoundPlace]:
    """What of ours is below a root, in the order of its names."""
    for folder, folders, names in _walk(root):
        for name in sorted(folders):
            if (match := WORKSPACE.fullmatch(name)) is not None:
                folders.remove(name)
                yield "workspace", join(folder, match["name"]), {}
        folders.sort()
        if ROOT_DOCUMENT in names:
            header = read_attributes(folder)
            kind = str(header.get("format"))
            if DENIED in header or kind in ("collection", "release", "model", GENERATIONS):
                folders[:] = ["parts"] if kind == GENERATIONS and "parts" in folders else []
                yield kind, folder, header
        for name in sorted(names):
            if name.endswith(PARQUET) and (about := read_export(join(folder, name))):
                yield "export", join(folder, name), about


DENIED = "denied"
"""Key in what is known of something that may not be read."""

PARQUET = (".parquet", ".pq")
"""Exports that say of which run they are."""


def owner_of(place: str) -> str:
    """The incremental release that a part belongs to; the place itself of anything else."""
    above, folder, _ = ("", *place.rstrip("/").rsplit("/", 2))[-3:]
    return above if folder == "parts" and above else place


def _walk(root: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, of any place; folders may be taken out of what is still to come."""
    path = local_path(root)
    if path is not None:
        yield from os.walk(path)
        return
    # Not fsspec's walk: what it cannot list it leaves out without a word.
    folders, names = dict[str, set[str]](), dict[str, list[str]]()
    for key in list_keys(open_store(root, read_only=True)):
        above, _, name = key.rpartition("/")
        names.setdefault(above, []).append(name)
        while above:
            higher, _, folder = above.rpartition("/")
            folders.setdefault(higher, set()).add(folder)
            above = higher
    # As os.walk: a folder that is taken out of the list is not entered.
    waiting = [""]
    while waiting:
        at = waiting.pop()
        here = sorted(folders.get(at, ()))
        yield join(root, *filter(None, [at])), here, names.get(at, [])
        waiting += [f"{at}/{name}".lstrip("/") for name in here]


def read_attributes(place: str) -> dict[str, Any]:
    """What a store of ours says of itself, unchecked; nothing of anything else."""
    return _read_header(place, _read_root)


def read_export(place: str) -> dict[str, Any]:
    """The header of the release that a Parquet file was made of; nothing of anybody else's."""
    return _read_header(place, _read_footer)


def _read_root(place: str) -> Any:
    content = read_bytes(open_store(place, read_only=True), ROOT_DOCUMENT) or b""
    return json.loads(content)["attributes"]["privpipe"]


def _read_footer(place: str) -> Any:
    with fsspec.open(place, "rb") as file:
        # The schema alone: the footer of the file, and no record.
        return json.loads((pq.read_schema(file).metadata or {})[b"privpipe"])


def _read_header(place: str, read: Callable[[str], Any]) -> dict[str, Any]:
    try:
        return dict(read(place))
    except PermissionError:
        return {DENIED: True}
    except (OSError, ValueError, KeyError, TypeError, PrivpipeError, pa.ArrowException):
        return {}


What = Literal["release", "parts", "model", "report", "workspace", "export"]
COMPANION = re.compile(r"\.([0-9a-f]{8}\.)?(?P<kind>model\.zarr|report|tradeoff|compare)(\..*)?")


@dataclass(frozen=True)
class Trace:
    """Something that was made of the records.

    Parameters
    ----------
    what
        "parts" are those of an incremental release.
    place
    why
        "holds" what was made of the records themselves; "learned" from them; "belongs" to what did.
    sha256
        Of its root document; empty where it has none.
    parts
        Which ones, of an incremental release.
    """

    what: What
    place: str
    why: Literal["holds", "learned", "belongs"]
    sha256: str = ""
    parts: tuple[str, ...] = ()


@dataclass
class Traces:
    """All that was found, and what is left because nothing says whose it is.

    Parameters
    ----------
    known
        Digests of the records, and of what holds them.
    count
        How many of the records another collection holds.
    """

    known: frozenset[str]
    count: Callable[[str], int]
    found: dict[tuple[str, str], Trace] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)
    models: set[str] = field(default_factory=set)
    increments: set[str] = field(default_factory=set)

    def meets(self, *digests: Any) -> bool:
        """Whether one of some digests is of the records."""
        return not self.known.isdisjoint(map(str, digests))

    def add(self, what: What, place: str, why: Any, parts: Iterable[str] = ()) -> None:
        """Note something; what learned from the records is said to have."""
        # What was removed is named by its digest, so that a copy that turns up can be recognised.
        digest = incremental.digest_root(place) if what in ("release", "model") else ""
        if (what, place) not in self.found or why == "learned":
            self.found[what, place] = Trace(what, place, why, digest, tuple(parts))


def find_traces(
    known: Iterable[str], account: str, roots: Iterable[str], url: str, count: Callable[[str], int]
) -> Traces:
    """Everything that was made of the records and is still at its place.

    Parameters
    ----------
    known
        Digests of the records, and of what holds them.
    account
        Where the register of releases is.
    roots
        Places below which everything is looked at.
    url
        The collection itself, which is no trace.
    count
        How many of the records another collection holds.

    Raises
    ------
    StoreError, FormatError
        If the register, or something that is there, cannot be read.
    """
    traces = Traces(frozenset(known), count)
    entries = read_releases(account)
    for entry in entries:
        _read_entry(traces, entry)
    registered = {entry.run for entry in entries}
    for root in dict.fromkeys(roots):
        for one in find_ours(root):
            if one[1] != url and not one[1].startswith(f"{url}/"):
                _read_found(traces, one, registered)
    for run, place in read_exports(account):
        if run not in traces.runs:
            continue
        try:
            _read_noted_export(traces, run, place)
        except (PrivpipeError, ImportError, OSError, ValueError):
            # A place that is gone, or never was one, would hold up every erasure.
            traces.left.append(f"{shown(place)}, an export that cannot be looked at: delete it")
    for place in sorted(traces.increments):
        _read_increment(traces, place)
    for trace in list(traces.found.values()):
        if trace.what in ("release", "parts", "workspace"):
            _add_companions(traces, trace)
    return traces


def _read_entry(traces: Traces, entry: Registered) -> None:
    holds = traces.meets(entry.source, *(digest for digest, _ in entry.partitions))
    learned = traces.meets(*entry.learned_from)
    if not (holds or learned):
        return
    traces.runs.add(entry.run)
    if owner_of(entry.url) != entry.url:
        traces.increments.add(owner_of(entry.url))
    # Another release may have taken the place since.
    elif exists(entry.url) and read_attributes(entry.url).get("run") == entry.run:
        traces.add("release", entry.url, "learned" if learned else "holds")
    if learned and entry.model:
        traces.models.add(entry.model)
        if entry.model_url and read_attributes(entry.model_url).get("digest") == entry.model:
            traces.add("model", entry.model_url, "learned")


def _read_found(traces: Traces, one: FoundPlace, registered: set[str]) -> None:
    """What a place below a root says of itself."""
    kind, place, header = one
    training, run = str(header.get("training_digest", "")), str(header.get("run", ""))
    learned = traces.meets(training)
    if DENIED in header:
        traces.left.append(f"{shown(place)}, which may not be read")
    elif kind == "workspace":
        _read_workspace(traces, place)
    elif owner_of(place) != place:  # a part goes once no generation names it
        traces.increments.add(owner_of(place))
    elif kind == "generations" and header.get("kind") == "release":
        traces.increments.add(place)
    # Copies of the records are named, not erased: whose they are is not known here.
    elif kind in ("collection", "generations"):
        n_records = traces.count(place)
        if n_records or traces.meets(header.get("digest", "")):
            many = f"{n_records:,} of the records" if n_records else "the records, as a copy"
            traces.left.append(f"{shown(place)} holds {many}: erase there as well")
    elif kind == "model":
        if learned or header.get("digest") in traces.models:
            traces.add("model", place, "learned")
        # It may have learned from the records: it is named.
        elif not training:
            traces.left.append(f"{shown(place)}, a model that does not say what it learned from")
    elif traces.meets(header.get("source_digest", "")) or run in traces.runs or learned:
        what: What = "export" if kind == "export" else "release"
        traces.add(what, place, "learned" if learned else "holds")
    elif run not in registered:
        traces.left.append(f"{shown(place)}, a {kind} whose run is in no register that was read")


def _read_workspace(traces: Traces, place: str) -> None:
    # In a bucket a part that is being made has its workspace within that of its release.
    if owner_of(place) != place or workspace.list_parts_begun(place):
        traces.increments.add(owner_of(place))
        return
    state, path = workspace.read_state(place), local_path(workspace.workspace_url(place))
    said = () if state is None else (state.source_digest, state.source_fingerprint)
    if state is not None and traces.meets(*said, state.training_fingerprint):
        traces.add("workspace", place, "holds")
    elif state is None and path is not None and workspace.has_workspace(place) and not exists(path):
        traces.add("workspace", place, "belongs")  # an interrupted removal
    elif state is None and not _is_only_held(place):
        left = shown(workspace.workspace_url(place))
        traces.left.append(f"{left}, a workspace that does not say of what")


def _is_only_held(place: str) -> bool:
    """Whether a workspace holds nothing but who held it."""
    keys = list_keys(open_store(workspace.workspace_url(place), read_only=True))
    # A run that refused at once leaves no more.
    return all(key == "lock" or key.startswith("lease/") for key in keys)


def _read_noted_export(traces: Traces, run: str, place: str) -> None:
    if place.endswith(".icechunk"):
        again = "after the erasure `privpipe export` to it again, or delete it"
        traces.left.append(f"{shown(place)}, an Icechunk repository: {again}")
        return
    inside = [place]
    if not place.endswith(PARQUET):
        inside = [join(place, name) for name in list_names(place) if name.endswith(PARQUET)]
    if place.endswith(".csv") and exists(place):
        traces.left.append(f"{shown(place)}, CSV, which does not say of what: delete it")
    elif any(header.get("run") == run for header in map(read_export, inside)):
        traces.add("export", place, "holds")
    elif exists(place):
        traces.left.append(f"{shown(place)}, where an export was and something else is now")
    else:
        traces.left.append(say_missing(place))


def say_missing(place: str) -> str:
    """Of an export that someone removed."""
    return f"an export to {shown(place)} that is not there any more"


def _read_increment(traces: Traces, place: str) -> None:
    """The parts of an incremental release that were made of the records, finished or not."""
    # Without the ledger no name of a part can be resolved.
    if not list_keys(open_store(companion_url(place, "ledger"), read_only=True)):
        if exists(place):
            traces.left.append(f"{shown(place)}, whose private ledger is not beside it")
        return
    ledger, found = incremental.PrivateLedger(place), incremental.read_incremental(place)
    state = None if found is None else found[1]
    # A part by the name of its folder or of its workspace.
    names = [name.split(".privpipe")[0] for name in list_names(join(place, incremental.PARTS))]
    stored = {name.removeprefix(".") for name in names}
    stored.update(workspace.list_parts_begun(place))
    learned = state is not None and traces.meets(state.header.get("training_digest", ""))
    parts, marks = set[str](), {ledger.mark_content(one) for one in traces.known}
    for name in stored:
        begun = workspace.read_state(incremental.part_url(place, name))
        said = [ledger.read(name).get("content", "")]
        if begun is not None:
            learned = learned or traces.meets(begun.training_fingerprint)
            said.append(begun.source_digest)
        if traces.meets(*said):
            parts.add(name)
    if state is not None:
        parts |= stored & {ledger.name_part(state.line, one) for one in traces.known}
        parts |= {part.id for part in state.parts if part.content in marks}
    if learned:  # from the records: then every part was made by what learned from them
        parts |= stored | {part.id for part in (state.parts if state else ())}
    if parts or learned:
        traces.add("parts", place, "learned" if learned else "holds", sorted(parts))


def _add_companions(traces: Traces, trace: Trace) -> None:
    """Reports, and the models that learned, of what goes; they lie beside it."""
    folder, _, name = trace.place.rstrip("/").rpartition("/")
    stem = name.removesuffix(".zarr")
    for name in list_names(folder):
        match = COMPANION.fullmatch(name.removeprefix(stem)) if name.startswith(stem) else None
        if match is None:
            continue
        place = join(folder, name)
        if match["kind"] != "model.zarr":
            traces.add("report", place, "belongs")
            continue
        header = read_attributes(place)
        # A model that saw other records stays, though its release goes.
        learned = header.get("training_digest", "") in traces.known
        if learned or (not header and trace.why == "learned"):
            traces.add("model", place, "learned")
