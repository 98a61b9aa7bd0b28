"""Compiled loops of generated text, stored between processes.

Compiling the cleaner of one rank takes seconds, and every worker of every run needs the same one.
numba keeps what it compiled beside the file a function comes from. Generated text gets such a file,
named by all that the machine code depends on, in a folder that no one else can write. What lies
there is executed. Where there is no such folder each process compiles for itself.
"""

import hashlib
import inspect
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from platformdirs import user_cache_dir

ROOM = 64 * 2**20
"""Free bytes below which nothing is stored: a full disk must not end a run."""


def compile_text(
    texts: Sequence[str],
    space: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    modules: Sequence[ModuleType] = (),
) -> Callable[..., Any]:
    """Compile generated functions, or take what an earlier process compiled.

    Parameters
    ----------
    texts
        That define the functions; made of numbers alone.
    space
        Names that they use beside one another.
    options
        Of ``numba.njit`` for each, in the order they call one another: the last is returned.
    modules
        That the names come from: a changed line there is another kernel.
    """
    whole = "\n".join(texts)
    # Sets of flags have no order of their own: sorted, one choice has one name.
    chosen = json.dumps(options, sort_keys=True, default=sorted)
    used = [f"{name} {value.__name__}" for name, value in space.items()]
    # numba does not see into what a cached function calls: a changed callee must change the name.
    digest = _digest([whole, chosen, *used, *map(inspect.getsource, modules)])
    folder = find_folder()
    if folder is not None:
        path = folder / f"privpipe_kernel_{digest}.py"
        try:
            _write_once(path, whole)
            # numba stores machine code in a folder beside the file that a function comes from.
            return _compile_module(str(path), digest, whole, space, options, keep=True)
        except (OSError, RuntimeError):  # no room, or numba finds no place beside the file
            pass
    return _compile_module("<generated>", digest, whole, space, options, keep=False)


def _compile_module(
    path: str,
    digest: str,
    text: str,
    space: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]],
    *,
    keep: bool,
) -> Callable[..., Any]:
    """What numba stored names the module of each function, which must therefore be there."""
    module = ModuleType(f"privpipe_kernel_{digest}")
    # Unpickling what numba stored imports this module by name.
    sys.modules[module.__name__] = module
    names = module.__dict__
    names.update(space)
    # The text is made of numbers by `cleaning_kernel`, never of what a caller wrote.
    exec(compile(text, path, "exec"), names)
    for number, (name, chosen) in enumerate(options.items(), 1):
        # The last holds the machine code of all others.
        names[name] = numba.njit(cache=keep and number == len(options), **chosen)(names[name])
    compiled: Callable[..., Any] = names[list(options)[-1]]
    return compiled


@cache
def find_folder() -> Path | None:
    """The folder of compiled loops, made if need be; None where no safe one can be had."""
    # An empty variable counts as none: it would be the working folder.
    root = os.environ.get("PRIVPIPE_CACHE") or user_cache_dir("privpipe")
    folder = Path(os.path.abspath(root)) / "kernels"
    try:
        # Private from the first moment: what lies there is executed.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Links are followed once, here; each folder above is then judged as it is.
        folder = folder.resolve(strict=True)
        roomy = shutil.disk_usage(folder).free >= ROOM
    except OSError:
        return None
    return folder if roomy and is_private(folder) else None


def is_private(folder: Path) -> bool:
    """Whether no one but this user (and root) can put a file there, or another folder in its place.

    Parameters
    ----------
    folder
        Absolute, without links.
    """
    trusted = (0, os.getuid())
    for place in (folder, *folder.parents):
        found = os.lstat(place)
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # In a sticky folder others may add, and not rename what is ours.
        shared = others and (place == folder or not found.st_mode & stat.S_ISVTX)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in trusted or shared:
            return False
    return os.lstat(folder).st_uid == os.getuid()


def _digest(texts: Sequence[str]) -> str:
    """Of everything the machine code depends on; numba itself looks at processor and version."""
    whole = hashlib.sha256(f"{numba.__version__} {sys.version}".encode())
    for text in texts:
        whole.update(f"\0{len(text)}\0{text}".encode())
    return whole.hexdigest()[:32]


def _write_once(path: Path, text: str) -> None:
    """Numba compares times of change: a file that says the same stays as it is."""
    if path.exists() and path.read_text("utf-8") == text:
        return
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    # In one step: another process never reads half a file.
    os.replace(name, path)
