"""What tests of release keys share: a binding, and what a key draws and hides."""

from __future__ import annotations

import json
from pathlib import Path

from privpipe.store.keyring.keyfiles import KeyBinding
from privpipe.store.keyring.keys import ReleaseKey

BINDING = KeyBinding(source="a" * 64, model="b" * 64, options="c" * 64)


def secret_of(keys_home: Path, key_id: str = "monday") -> str:
    return str(json.loads((keys_home / f"{key_id}.key").read_text())["secret"])


def words(key: ReleaseKey) -> list[int]:
    return key.stream("d" * 64, 3, 2).words("noise", 2).ravel().tolist()
