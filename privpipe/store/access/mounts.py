"""Whether a place outlives a restart, as far as the kernel's table of mounts says.

The table is ``/proc/self/mountinfo``, see proc_pid_mountinfo(5). Memory and the layer that is a
container's own are seen. A folder that somebody empties on a disk is not. Nor is a virtual
machine's disk that is thrown away, or a container's root that is no overlay. Where there is no such
table nothing is seen.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from privpipe.store.access.location import local_path

TABLE = "/proc/self/mountinfo"
# Lost at a restart.
MEMORY = ("tmpfs", "ramfs", "devtmpfs")
# What a container writes outside of its volumes, lost with it.
LAYERS = ("overlay", "aufs", "fuse.fuse-overlayfs", "fuse-overlayfs")
MEMORY_DEVICE = re.compile(r"/dev/z?ram\d+")
OF_A_POD = "/kubernetes.io~empty-dir/"


@dataclass(frozen=True)
class Mount:
    """One line of the table.

    Parameters
    ----------
    id, parent
        Its number, and that of the mount on which it lies.
    root
        The folder of the file system that is mounted.
    point
        Where.
    kind, source
        Of file system, and what it is made of.
    """

    id: str
    parent: str
    root: str
    point: str
    kind: str
    source: str


def read_mounts(table: str) -> tuple[Mount, ...]:
    """The lines of a table that can be read.

    >>> [mount.point for mount in read_mounts("43 27 8:17 / /a\\\\040b rw - xfs /dev/sdb1 rw")]
    ['/a b']
    """
    found: list[Mount] = []
    for line in table.splitlines():
        # Optional fields before the mark differ in number: what follows it is counted from there.
        place, _, file_system = line.partition(" - ")
        fields, kinds = place.split(" "), file_system.split(" ")
        if len(fields) >= 6 and len(kinds) >= 2:
            root, point, source = map(_unescape, (fields[3], fields[4], kinds[1]))
            found.append(Mount(fields[0], fields[1], root, point, kinds[0], source))
    return tuple(found)


def find_mount(place: str, mounts: Iterable[Mount]) -> Mount | None:
    """The mount that holds a place, an absolute path without links; None where none is known.

    It is walked as the kernel does, from mount to mount. One that came later over a folder hides
    those below that folder, though their lines are still in the table.
    """
    known = list(mounts)
    ids, here = {mount.id for mount in known}, None
    while over := [
        mount
        for mount in known
        if _holds(mount.point, place) and mount is not here
        if (mount.parent not in ids if here is None else mount.parent == here.id)
    ]:
        # The kernel crosses into the outermost first; `st_dev` names no line of btrfs and overlay.
        here = min(over, key=lambda mount: len(mount.point))
    return here


def name_loss(mount: Mount) -> str:
    """What a file system is whose files are lost some day, in words; empty where it lasts."""
    if mount.kind in MEMORY or MEMORY_DEVICE.fullmatch(mount.source):
        return f"memory ({mount.kind})"
    if mount.kind in LAYERS:
        return f"a layer that goes with its container ({mount.kind})"
    return "a folder that goes with its pod (emptyDir)" if OF_A_POD in f"{mount.root}/" else ""


def find_loss(url: str) -> str:
    """`name_loss` of a place that need not exist yet; empty in a bucket and where it is unknown."""
    path = local_path(url)
    if path is None:
        return ""
    try:
        table = Path(TABLE).read_text("utf-8", "surrogateescape")
    except OSError:
        return ""
    mount = find_mount(os.path.realpath(path), read_mounts(table))
    return "" if mount is None else name_loss(mount)


def _holds(point: str, place: str) -> bool:
    return place == point or place.startswith(f"{point.rstrip('/')}/")


def _unescape(field: str) -> str:
    r"""A field as it is: space, tabulator, newline and backslash are written in octal.

    >>> _unescape(r"a\040b\134040")
    'a b\\040'
    """
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
