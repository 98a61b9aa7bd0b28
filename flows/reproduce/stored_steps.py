"""Where the steps of a reproduction are stored."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata
from pathlib import Path

import platformdirs


def find_folder(name: str, data: Path, files: tuple[str, ...]) -> Path:
    """Where the steps of a reproduction are stored: another place for other data or another code.

    Below PRIVPIPE_CACHE, or the user's cache folder.
    """
    identity = hashlib.sha256(metadata.version("privpipe").encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        identity.update(source.read_bytes())
    for file in files:
        about = (data / file).stat()
        identity.update(f"{file} {about.st_size} {about.st_mtime_ns}".encode())
    root = os.environ.get("PRIVPIPE_CACHE") or platformdirs.user_cache_dir("privpipe")
    folder = Path(root) / "reproduce" / f"{name}-{identity.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
