"""A place where something appears whole or not at all, and that one process writes at a time.

Ingest and export write into the private workspace of their destination, hidden beside it, and show
what they made by one last rename. In a bucket nothing can be renamed, so objects are written in
place. A note in the workspace says that they are unfinished and ours, and one object that readers
require comes last.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from privpipe.errors import StoreError
from privpipe.store.access import objects, workspace
from privpipe.store.access.location import create_bytes, join, local_path, shown
from privpipe.store.access.objects import Progress
from privpipe.store.arrays.layout import ROOT_DOCUMENT, already_exists, check_output_free, exists

MADE = "made"


@contextmanager
def hold_destination(url: str, *, last: str = ROOT_DOCUMENT) -> Iterator[str]:
    """Own a destination; yields where to write, which is empty.

    What a killed process left of an earlier attempt is removed first, once no one holds it. What
    was written is removed when the block ends without `show_made`.

    Parameters
    ----------
    url
        The destination; nothing may be there yet.
    last
        Name of the object without which readers see nothing, where nothing can be renamed.

    Raises
    ------
    StoreError
        If something is there already, another process writes there, or it cannot be made.
    """
    check_output_free(url, last)  # what can be seen is refused before a workspace is made
    with workspace.hold_workspace(url):
        check_idle(url)
        _clear(url, last)
        try:
            if exists(url) or objects.list_keys(objects.open_store(url, read_only=True)):
                raise already_exists(url)
            yield _begin(url)
        finally:
            _clear(url, last)
            workspace.remove_workspace(url)


def show_made(
    url: str, work: str, last: bytes, *, name: str = ROOT_DOCUMENT, progress: Progress = None
) -> None:
    """Write the last object, then make all visible in one step.

    Parameters
    ----------
    url, work
        The destination, and where `hold_destination` said to write.
    last, name
        Content and name of the last object.
    progress
        As of `move_made`.

    Raises
    ------
    StoreError
        If something was put there meanwhile.
    """
    path, made = local_path(url), local_path(work)
    if path is None or made is None:
        # Readers open the root first: until it is there they see nothing.
        if not create_bytes(join(url, name), last):
            raise already_exists(url)
        return
    objects.write_bytes(objects.open_store(work), name, last)
    move_made(made, path, progress)


def move_made(made: str, path: str, progress: Progress = None) -> None:
    """Rename a finished file or folder to its place, flushed first; nothing is overwritten.

    Without it a power cut may leave the name of what has lost its contents.
    """
    if os.path.lexists(path):
        raise already_exists(path)
    # Content before the name, and the name before anything relies on it.
    objects.flush_tree(made, progress)
    os.rename(made, path)
    objects.flush(os.path.dirname(path))


def check_idle(url: str) -> None:
    """Raise StoreError if a killed run or erasure has what is to be at a place."""
    erased = exists(join(workspace.workspace_url(url), workspace.ERASED))
    if erased or workspace.read_state(url) is not None:
        what = "erasure" if erased else "run of a release"
        problem = f"{shown(url)} belongs to an interrupted {what}."
        remedy = "Choose another place, or end that first: `privpipe purge`."
        raise StoreError(problem, remedy=remedy, code="exists")


def _begin(url: str) -> str:
    """Where to write."""
    if local_path(url) is not None:
        return join(workspace.workspace_url(url), MADE)
    objects.write_bytes(objects.open_store(workspace.workspace_url(url)), workspace.MAKING, b"{}")
    return url


def _clear(url: str, last: str) -> None:
    """Remove what was written and never shown; only he who holds the destination may."""
    if local_path(url) is not None:
        made = join(workspace.workspace_url(url), MADE)
        shutil.rmtree(made, ignore_errors=True)
        if os.path.isfile(made):
            os.unlink(made)
        return
    noted = objects.open_store(workspace.workspace_url(url), read_only=True)
    # Without a note of ours what is there is another's.
    if objects.read_bytes(noted, workspace.MAKING) is None:
        return
    if objects.read_bytes(objects.open_store(url, read_only=True), last) is None:
        objects.delete_tree(objects.open_store(url))
