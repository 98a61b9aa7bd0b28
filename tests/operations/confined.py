"""Start a command under the filter of system calls of a unit of systemd.

``python -m tests.operations.confined UNIT WORDS...``, where no systemd runs. Sets of calls are
those of `systemd-analyze`; what is not in them fails with EPERM, as the unit says.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

FAILS_WITH_EPERM, ALLOWED = 0x00050001, 0x7FFF0000
"""Of seccomp.h."""


def expand(name: str) -> set[str]:
    """System calls of a set."""
    if not name.startswith("@"):
        return {name}
    asked = ["systemd-analyze", "syscall-filter", name]
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in said.splitlines()[1:]]
    return set().union(*(expand(word) for word in words if word and word[0] != "#"))


def read_calls(unit: Path) -> set[str]:
    """System calls that a unit allows."""
    allowed = expand("@default")
    for words in re.findall(r"^SystemCallFilter=(.+)$", unit.read_text(), re.MULTILINE):
        found = set[str]().union(*(expand(word) for word in words.lstrip("~").split()))
        allowed = allowed - found if words.startswith("~") else allowed | found
    return allowed


def confine(unit: Path) -> None:
    """Allow this process, and all that it starts, what the unit allows."""
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(FAILS_WITH_EPERM))
    for name in sorted(read_calls(unit)):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0 and seccomp.seccomp_rule_add(context, ALLOWED, number, 0):
            raise RuntimeError(f"no rule for {name}")
    if seccomp.seccomp_load(context):
        raise RuntimeError("the filter cannot be loaded")


if __name__ == "__main__":
    confine(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
