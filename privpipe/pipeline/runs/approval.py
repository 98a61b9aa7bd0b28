"""A failed gate's case in the workspace, and somebody's approval of exactly that case.

Both vanish with the workspace, when the release is published or purged: an approval counts once.
"""

import json
from contextlib import suppress
from shlex import quote

from privpipe.errors import FormatError, GateError, OptionError, printable
from privpipe.pipeline.runs.run import now
from privpipe.store.access.location import shown
from privpipe.store.access.objects import keep_bytes, open_store, read_bytes
from privpipe.store.access.workspace import CASE, hold_workspace, read_state, workspace_url

APPROVAL = "approval.json"


def write_case(release_url: str, digest: str, sentence: str) -> None:
    """Record what a gate refused, so that it can be approved."""
    _write(release_url, CASE, {"digest": digest, "sentence": sentence})


def approve_release(release_url: str, name: str, reason: str) -> dict[str, str]:
    """Approve what the gate of a release refused, once.

    Parameters
    ----------
    release_url
        The release that was not published.
    name, reason
        Who approves, and why; both are published in the release's header.

    Returns
    -------
    approval
        ``name``, ``reason``, ``approved`` (UTC), ``digest`` and ``sentence`` of the case.

    Raises
    ------
    OptionError
        If name or reason is empty, or there is nothing to approve.
    StoreError
        If a run is writing.
    """
    name, reason = printable(name.strip()), printable(reason.strip())
    if not name or not reason:
        problem = "An approval needs a name and a reason; both are published with the release."
        raise OptionError(problem, remedy="Give --name and --reason.")
    if read_state(release_url) is not None:
        # Held, so that no run changes the case while it is approved.
        with hold_workspace(release_url):
            if case := _read(release_url, CASE):
                approval = {**case, "name": name, "reason": reason, "approved": now()}
                _write(release_url, APPROVAL, approval)
                return approval
    problem = f"No gate has refused the release {shown(release_url)}: there is nothing to approve."
    remedy = "Run it first; `privpipe status` shows how far it is."
    raise OptionError(problem, remedy=remedy, code="nothing-to-approve")


def read_approval(release_url: str, digest: str) -> dict[str, str] | None:
    """The approval of a case; None without any.

    Raises
    ------
    GateError
        If what was approved is something else.
    """
    found = _read(release_url, APPROVAL)
    if found is None:
        return None
    # Whoever approved saw other findings, limits or records: that is no approval of these.
    if found["digest"] != digest:
        raise GateError(
            "What was approved is not what the gate refuses now: the run, its records, its "
            "findings or the limits have changed since.",
            remedy="Nothing was published. Run `privpipe purge` to begin anew, or approve this: "
            f"privpipe approve {quote(shown(release_url))} --name NAME --reason REASON.",
            code="other-approval",
        )
    return found


def _write(release_url: str, key: str, content: dict[str, str]) -> None:
    # Flushed, since whoever approved has gone away: it has to outlive a power cut.
    keep_bytes(workspace_url(release_url), key, json.dumps(content, indent=1).encode())


def _read(release_url: str, key: str) -> dict[str, str] | None:
    found = read_bytes(open_store(workspace_url(release_url), read_only=True), key)
    if found is None:
        return None
    with suppress(ValueError):
        content = json.loads(found)
        if isinstance(content, dict) and {"digest", "sentence"} <= set(content):
            return content
    problem = f"{key} in the workspace of {shown(release_url)} is damaged."
    raise FormatError(problem, remedy="Run again: the gate writes it anew; approve again.")
