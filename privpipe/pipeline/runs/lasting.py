"""Whether account and keys of a run lie where they last: what is lost there is given away again.

An account that begins anew lets the same records lose their limit again; a key that is gone is
followed by another, and two draws for one record are averaged.
"""

from __future__ import annotations

from privpipe.errors import StoreError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access.location import shown
from privpipe.store.access.mounts import find_loss
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.keyfiles import key_folder


def check_lasting(options: RunOptions) -> None:
    """Refuse a promise that holds across runs where nothing is kept across them.

    Raises
    ------
    StoreError
        If the account or the keys of a method with differential privacy are in memory or in a
        container's own layer, and ``[privacy] ephemeral`` does not accept that.
    """
    fleeting = list_fleeting(options) if is_promised_across_runs(options) else []
    if fleeting and options.privacy.ephemeral == "refuse":
        raise StoreError(
            f"{'. '.join(fleeting)}. What records have lost, and by which draws, would be "
            "forgotten.",
            remedy="Name folders that last, as a volume of the container, in [privacy] account or "
            "PRIVPIPE_ACCOUNT and in PRIVPIPE_KEYS; or, for records that nobody releases again, "
            'set [privacy] ephemeral = "accept", which counts as weaker.',
            code="ephemeral",
        )


def is_promised_across_runs(options: RunOptions) -> bool:
    """Whether the method charges an account."""
    return options.method.consumes() is not None


def list_fleeting(options: RunOptions) -> list[str]:
    """What is kept for later runs and lies where it is lost, each in a sentence without its end.

    The account, with its registers of releases and attempts, of every run; the keys of those that
    charge it.
    """
    places = {"account": find_account(options.privacy.account)}
    if is_promised_across_runs(options):
        places["key folder"] = str(key_folder())
    found = {what: (place, find_loss(place)) for what, place in places.items()}
    return [
        f"The {what} {shown(place)} is in {loss}" for what, (place, loss) in found.items() if loss
    ]
