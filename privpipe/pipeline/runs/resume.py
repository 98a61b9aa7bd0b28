"""Begin a run, or resume the one that its workspace belongs to."""

from dataclasses import replace
from typing import Any

from privpipe.errors import OptionError, StoreError
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.trusted_code import find_code, say_changed_code
from privpipe.store.access import workspace
from privpipe.store.access.location import shown
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.arrays.layout import already_exists, exists, read_header, read_kind
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.proving import read_source_version


def is_published(options: RunOptions, collection: Collection) -> bool:
    """Whether the release exists already, made of this source by this configuration.

    Raises
    ------
    StoreError
        If something else is there.
    """
    url = options.release.path
    if not exists(url):
        return False
    if read_kind(url) == "release":
        header = read_header(url, "release")
        # Both: the same options for other records are another release, and so are others for these.
        expected = options.digest(), collection.digest
        if (header["options_sha256"], header["source_digest"]) == expected:
            return True
        now = find_code(options.model_dump(mode="json")["method"])
        if changed := say_changed_code(find_code(header["options"]), now):
            problem = f"Since {shown(url)} was made, {changed}; a release is never overwritten."
            remedy = "Nothing was made or published. Use another place, or restore the file."
            raise StoreError(problem, remedy=remedy, code="code-changed")
    problem = f"{shown(url)} exists and is of another configuration or collection. It stays."
    raise StoreError(problem, remedy="Choose another place, or remove it.", code="exists")


def begin_or_resume(run: Run) -> tuple[Run, bool]:
    """Take up the interrupted run of this configuration, or record a new one.

    Returns
    -------
    run
        With the identifier and state to work under.
    resumed
        Whether there was something to resume.

    Raises
    ------
    OptionError
        If the workspace belongs to another configuration, whose run was not judged yet.
    StoreError
        If the source has changed since.

    Notes
    -----
    An attempt that the gate refused makes room for the next one. Sums over the same records are
    used again: they are named by all that they depend on.
    """
    known = workspace.read_state(run.release_url)
    if known is None and list_keys(open_store(run.release_url, read_only=True)):
        raise already_exists(run.release_url)
    if known is None or _has_made_nothing(run, known):
        # Before any work: whatever is killed from here on is resumed under this identifier.
        workspace.write_state(run.release_url, run.state)
        return run, False
    if known.options_sha256 != run.state.options_sha256:
        _replace_refused(run, known)
        return run, False
    resumed = replace(run, state=_take_restored(run, known))
    check_unchanged(resumed)
    return resumed, True


def _take_restored(run: Run, known: workspace.RunState) -> workspace.RunState:
    """The state of a run, where a damaged chunk of equal records was restored: new files of old."""
    if known.source_digest != run.state.source_digest:
        return known
    files = run.state.training_fingerprint if run.trains_on_itself else known.training_fingerprint
    fresh = replace(
        known, source_fingerprint=run.state.source_fingerprint, training_fingerprint=files
    )
    workspace.write_state(run.release_url, fresh)
    return fresh


def _replace_refused(run: Run, known: workspace.RunState) -> None:
    """Begin anew where a gate refused what another configuration made; else refuse this one."""
    url = run.release_url
    if read_bytes(open_store(workspace.workspace_url(url), read_only=True), workspace.CASE) is None:
        changed = say_changed_code(known.code, run.state.code)
        raise OptionError(
            f"The run of {shown(url)} had another configuration{changed and ': '}{changed}.",
            remedy=f"Nothing of it was published. To begin anew with this one: `privpipe purge "
            f"{shown(url)}`, then run again. To resume that one, give it the configuration it "
            f"had{', with the file as it was' if changed else ''}.",
            code="other-configuration",
        )
    # What came of it is in the folder of the report; see `history`.
    same = (run.state.source_fingerprint, run.state.training_fingerprint)
    keeps = (known.source_fingerprint, known.training_fingerprint) == same
    retained = (workspace.STATE, *("kept",) * keeps)
    # The case last: who is killed in between finds it, and clears the rest.
    workspace.clear_workspace(url, keep=(*retained, workspace.CASE))
    workspace.write_state(url, run.state)
    workspace.clear_workspace(url, keep=retained)


def _has_made_nothing(run: Run, known: workspace.RunState) -> bool:
    """Whether another configuration was refused before it learned anything that would be lost.

    So that what the refusal advised can be followed. Fits of many rounds keep their steps.
    """
    changed = known.options_sha256 != run.state.options_sha256 and known.stage == "check"
    return changed and not run.options.method.in_rounds and not exists(run.stored_model_url)


def check_unchanged(run: Run) -> None:
    """Raise StoreError if source or training records changed since the run began."""
    state = run.state
    both = (run.collection, state.source_fingerprint), (run.training, state.training_fingerprint)
    for collection, known in both:
        # The version that the store has, not a digest of all bytes: this is compared twice a run.
        # That each chunk read is the one that was ingested is held by its receipt.
        if read_source_version(collection.url) != known:
            problem = f"{shown(collection.url)} has changed since the run began."
            remedy = f"Nothing was published. `privpipe purge {shown(run.release_url)}`, rerun."
            raise StoreError(problem, remedy=remedy, code="source-changed")


def begin_stage(run: Run, stage: str, **known: Any) -> Run:
    """Record that a stage begins, with what is known of the run by then; it stays known."""
    state: workspace.RunState = replace(run.state, stage=stage, **known)
    workspace.write_state(run.release_url, state)
    return replace(run, state=state)
