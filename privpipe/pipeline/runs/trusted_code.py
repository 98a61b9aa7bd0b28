"""Code that a configuration names is run once its hash was confirmed, and that is remembered.

A configuration may be somebody else's, and so may the file beside it. ``privpipe run`` alone runs
such code, after ``--trust SHA256``; every other command reads the file and says that it did not.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from privpipe.errors import OptionError
from privpipe.option_values import is_trusted, trust
from privpipe.pipeline.runs.run_options import RunOptions

FOLDER, NAMED = "PRIVPIPE_TRUSTED_CODE", "PRIVPIPE_TRUST"
N_DIGITS = 64


def remember_code(given: Iterable[str]) -> None:
    """Remember hashes as confirmed by whoever started this command, for all later runs of theirs.

    Raises
    ------
    OptionError
        If one is no SHA-256.
    """
    for sha256 in given:
        if len(sha256) != N_DIGITS or set(sha256) - set("0123456789abcdef"):
            problem = "--trust takes the SHA-256 of a file, 64 hexadecimal digits."
            remedy = "The refusal of the run says it; compare: sha256sum FILE."
            raise OptionError(problem, remedy=remedy)
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A file for each: two commands at a time do not overwrite one another.
        (folder / sha256).touch(mode=0o600)


def confirm_code(options: RunOptions) -> None:
    """Let the code of a configuration run in this process, if it was confirmed.

    Raises
    ------
    OptionError
        If a file is not remembered, nor named by ``PRIVPIPE_TRUST``.
    """
    named = os.environ.get(NAMED, "").replace(",", " ").split()
    for what, sha256 in _find(options).items():
        # By hash, not by path: a file that was changed has to be confirmed again.
        if not (is_trusted(sha256) or sha256 in named or (_folder() / sha256).is_file()):
            raise OptionError(
                f"The configuration names a file of code ({what}, SHA-256 {sha256}), which was "
                "not confirmed yet: nothing of it was run.",
                remedy=f"Read the file, then: privpipe run CONFIG --trust {sha256}. It is "
                f"remembered; for machines that forget, set {NAMED}.",
                code="filter-untrusted",
            )
        trust(sha256)


def list_unrun(options: RunOptions) -> list[str]:
    """A sentence for each file of code that this process reads only."""
    return [
        f"{what}: the file (SHA-256 {sha256}) was not run; `privpipe run` checks its class"
        for what, sha256 in _find(options).items()
        if not is_trusted(sha256)
    ]


def _find(options: RunOptions) -> dict[str, str]:
    """Hashes of the files, by what they hold."""
    named = find_code(options.model_dump(mode="json")["method"])
    return {"a loss" if "loss_code" in key else "a filter": named[key] for key in named}


def _folder() -> Path:
    return Path(os.environ.get(FOLDER) or user_data_path("privpipe") / "trusted_code")


def find_code(options: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of each file of code that a method's options name, from their JSON form.

    >>> find_code({"epsilon": 1.0, "filter": {"code_sha256": "ab", "loss_code_sha256": None}})
    {'filter.code_sha256': 'ab'}
    """
    found: dict[str, str] = {}
    for key, value in options.items():
        # The method that adds noise has options of a filter within its own.
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": sha256 for inner, sha256 in find_code(value).items()}
        elif key.endswith("code_sha256") and value:
            found[key] = str(value)
    return found


def say_changed_code(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Which files of code have changed, with both hashes; nothing where none has.

    >>> say_changed_code({"method.code_sha256": "ab"}, {"method.code_sha256": "cd"})
    'the module of the filter has changed: its SHA-256 was ab and is cd'
    """
    return ", and ".join(
        f"the module of the {'loss' if 'loss_code' in name else 'filter'} has changed: its SHA-256 "
        f"was {sha256} and is {now[name]}"
        for name, sha256 in before.items()
        if name in now and now[name] != sha256
    )
