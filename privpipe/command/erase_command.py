"""``privpipe erase``: records leave a collection and all that was made of them and can be found."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import fsspec

from privpipe.errors import OptionError
from privpipe.pipeline.operations.erase import ErasureOptions, erase_records, plan_erasure
from privpipe.pipeline.operations.record_removal import ChosenRecords
from privpipe.report import audit_text
from privpipe.report.console import say
from privpipe.store.access.location import local_path, shown
from privpipe.store.collections.growing_collection import read_uses


def erase_command(
    collection: str, where: str, *, under: Sequence[str], account: str, name: str, dry_run: bool
) -> dict[str, Any]:
    """Erase, or say what would be; see `erase_records`.

    Raises
    ------
    OptionError
        If it is not said which records.
    """
    chosen = _read_chosen(where)
    if chosen.name == "subject":  # as [collection] names whose a record is, whatever its column
        chosen = replace(chosen, name=read_uses(collection).get("subject", "subject"))
    options = ErasureOptions(account, tuple(under), name)
    found = (plan_erasure if dry_run else erase_records)(collection, chosen, options)
    certificates = [found] if isinstance(found, dict) else found
    for one in certificates:
        _show(one, dry_run=dry_run)
    if not certificates:
        say(f"{shown(collection)} holds no such record: nothing was changed")
    return {"erasures": certificates, "dry_run": dry_run}


def _read_chosen(where: str) -> ChosenRecords:
    """Which records are meant; no message says a value."""
    # "==" first: a value may hold " in ".
    for sign, read in (("==", lambda text: (text,)), (" in ", _read_values)):
        name, found, value = where.partition(sign)
        if found and name.strip() and value.strip():
            text = value.strip()
            # A pair of quotes is of the shell; one alone is of the value.
            quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
            return ChosenRecords(name.strip(), tuple(read(text[1:-1] if quoted else text)))
    problem = '--where is neither "name == value" nor "name in FILE".'
    remedy = "Name a variable or a feature of the collection, and one value or a file of them."
    raise OptionError(problem, remedy=remedy, code="where")


def _read_values(place: str) -> list[str]:
    problem = ""
    try:
        with fsspec.open(local_path(place) or place, "r", encoding="utf-8-sig") as file:
            return [line.strip() for line in file if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        # Never the error's own text: of a decoding error it quotes the file.
        problem = getattr(error, "strerror", "") or type(error).__name__
    problem = f"The values in {shown(place)} cannot be read ({problem})."
    raise OptionError(problem, remedy="Give a text file with one value a line.", code="where")


def _show(certificate: Mapping[str, Any], *, dry_run: bool) -> None:
    verb = "would be erased" if dry_run else "erased"
    say(f"{certificate['n_records']:,} records {verb} from {shown(certificate['collection'])}")
    why = {"holds": "made of them", "learned": "learned from them", "belongs": "belongs to it"}
    for one in certificate["removed"]:
        many = f" ({len(one['parts'])} parts)" if one["what"] == "parts" else ""
        what = f"{'would go' if dry_run else 'removed '} {one['what']}{many}"
        say(f"{what} {shown(one['place'])}: {why[one['why']]}")
    for sentence in certificate["left"]:
        say(f"left     {sentence}")
    if not dry_run:
        say(audit_text.say("erased", one=certificate))
