"""What a file of the key folder says: binding, times, and in key files the secret.

JSON with a digest over all of it, so that damage cannot pass for another key.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from privpipe.errors import FormatError, OptionError
from privpipe.numerics.random.streams import KEY_BYTES

_FORMAT = "privpipe-key"
_VERSION = 2
"""Version 1 did not note the runs; it is read as having none."""
_DIGEST = re.compile(r"[0-9a-f]{32,128}")


@dataclass(frozen=True)
class KeyBinding:
    """What a key serves: one content, one model, one set of options, by their digests.

    Parameters
    ----------
    source
        Digest of the content of the source partition.
    model
        Digest of the map.
    options
        Digest of what else decides the map's input or its draws.

    Raises
    ------
    OptionError
        If a digest is not of that form.
    """

    source: str
    model: str
    options: str

    def __post_init__(self) -> None:
        for part in fields(self):
            if not _DIGEST.fullmatch(getattr(self, part.name)):
                raise OptionError(
                    f"The {part.name} digest of a key is not 32 to 128 lower-case hex digits.",
                    remedy="Use the hexdigest of sha256.",
                )

    def differences(self, other: KeyBinding) -> tuple[str, ...]:
        """Names of the parts that differ, in order."""
        names = (part.name for part in fields(self))
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))


@dataclass(frozen=True)
class KeyEntry:
    """What the ledger knows of a key; nothing of its bytes.

    Parameters
    ----------
    key_id
        Name of the key.
    binding
        What it serves.
    created, forgotten
        UTC times in ISO 8601; `forgotten` is None while the key exists.
    runs
        Identifiers of the runs that drew from it.
    """

    key_id: str
    binding: KeyBinding
    created: str
    forgotten: str | None = None
    runs: tuple[str, ...] = ()


def encode_key(entry: KeyEntry, secret: bytes = b"") -> bytes:
    """Content of a ledger entry, or with a secret that of a key file."""
    content: dict[str, Any] = {
        "format": _FORMAT,
        "version": _VERSION,
        "id": entry.key_id,
        **{part.name: getattr(entry.binding, part.name) for part in fields(KeyBinding)},
        "created": entry.created,
        "forgotten": entry.forgotten,
        "runs": list(entry.runs),
        "secret": secret.hex(),
    }
    return json.dumps({**content, "check": _check_sum(content)}, indent=1).encode() + b"\n"


def decode_key(content: bytes, path: Path) -> tuple[KeyEntry, bytes]:
    """Entry and secret of a file, or FormatError without a word of what is in it."""
    try:
        table = json.loads(content)
        sound = table.pop("check") == _check_sum(table) and table["format"] == _FORMAT
        binding = KeyBinding(table["source"], table["model"], table["options"])
        runs = tuple(table["runs"]) if table["version"] > 1 else ()
        entry = KeyEntry(table["id"], binding, table["created"], table["forgotten"], runs)
        secret = bytes.fromhex(table["secret"])
        sound = sound and table["version"] in (1, _VERSION) and entry.key_id == path.stem
        sound = sound and len(secret) == (KEY_BYTES if path.suffix == ".key" else 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        sound = False
    if not sound:
        raise FormatError(
            f"{path} is damaged or not a file of a release key.",
            remedy="Restore it, or destroy the key with `privpipe forget-key` and release anew.",
        )
    return entry, secret


def _check_sum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
