"""``privpipe account``, ``forget-key``, ``certs``, ``sign``, ``verify``: losses and keys."""

import math
from bisect import bisect_left
from dataclasses import asdict
from typing import Any

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.sketch_pass import sketch_collection
from privpipe.cluster.workers import certificates, processes
from privpipe.errors import OptionError, StoreError
from privpipe.numerics.limits import say_upper
from privpipe.numerics.random.record_overlap import Overlap
from privpipe.report import audit_text, work_bar
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import as_url, shown
from privpipe.store.access.objects import list_names
from privpipe.store.arrays.layout import exists, read_header
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring.account import MOST_DELTA, Account, Loss, TotalLoss, find_account
from privpipe.store.keyring.account_chain import check_chain
from privpipe.store.keyring.keyfiles import KeyEntry
from privpipe.store.keyring.keys import forget_key, forget_keys, list_keys, list_unreadable
from privpipe.store.keyring.sketches import Sketches
from privpipe.store.releases import signing

COUNTED = ("epsilon", "delta", "n_charges", "n_open")
"""What an account counts of a partition's entries."""


AT_DELTA = 1e-6
"""At which the account says what many releases reveal together, where no limit names another."""

MOST_LEFT = 100_000
"""Further releases that are counted."""


def account_command(url: str, *, sketch: str | None = None, limit: str = "") -> dict[str, Any]:
    """List the privacy budget that every partition consumed, by the digest of its content.

    Parameters
    ----------
    url
        Of the account.
    sketch
        A collection whose records the account is to know again; read in this process.
    limit
        Of epsilon, or of epsilon and delta by comma: how many more releases like the dearest of
        each partition it allows.

    Raises
    ------
    OptionError
        If the limit is no such.
    StoreError
        If a place is named where nothing is.
    """
    allowed = _read_limit(limit)
    place = as_url(find_account(url or None))
    # Before the account is read: overlaps decide which losses add up.
    sketches = Sketches(place)
    if sketch is not None:
        sketch_collection(Executor(), open_collection(as_url(sketch)), sketches)
    ties = sketches.ties()
    check_chain(place)
    account = Account(place, ties)
    losses = list(account.read_all())
    if url and not losses and not list_names(place):
        problem = f"There is no account at {shown(place)}: nothing is there."
        raise StoreError(problem, remedy="Check the place.", code="not-found")
    # Partitions without a charge are in the account for their sketch alone.
    charged = [loss.partition for loss in losses if loss.n_charges]
    # Other partitions that were charged and hold records of this one.
    related = {loss.partition: ties.relatives(loss.partition) for loss in losses}
    overlaps = {
        mine: {other: how for other, how in found.items() if other in charged}
        for mine, found in related.items()
    }
    totals = {loss.partition: account.read_joined(loss.partition) for loss in losses}
    joined = {partition: one.epsilon for partition, one in totals.items()}
    eps = {key: one.find_epsilon(allowed[1]) for key, one in totals.items()}
    # Without a delta of its own a run allows that of one release, and so does its limit here.
    delta = allowed[1] if "," in limit else 0.0
    left = {
        one.partition: _count_left(totals[one.partition], one, allowed[0], delta) for one in losses
    }
    missing = sketches.find_missing(charged)
    more = {f"at delta {allowed[1]:g}": {key: say_upper(one, digits=3) for key, one in eps.items()}}
    more |= {"releases left": {key: str(n) for key, n in left.items()}} if limit else {}
    _show_account(place, losses, joined, more, overlaps)
    if missing:
        say(f"{len(missing)} partitions without a sketch: privpipe account --sketch COLLECTION")
    return {
        "account": shown(place),
        "partitions": [
            {
                **asdict(loss),
                **{key: getattr(loss, key) for key in COUNTED},
                "joined_epsilon": joined[loss.partition],
                # JSON knows no infinity: no epsilon holds with this delta.
                "composed_epsilon": one if (one := eps[loss.partition]) < math.inf else None,
                **({"releases_left": left[loss.partition]} if limit else {}),
                "overlaps": {other: how.mine for other, how in overlaps[loss.partition].items()},
            }
            for loss in losses
        ],
        "without_sketch": missing,
    }


def _read_limit(text: str) -> tuple[float, float]:
    """Epsilon and delta; infinite, and `AT_DELTA`, where nothing is said of them."""
    try:
        epsilon, delta = (float(one) for one in f"{text or 'inf'},{AT_DELTA}".split(",")[:2])
        if not (epsilon > 0 and 0 < delta < 1 and text.count(",") < 2):
            raise ValueError
    except ValueError:
        remedy = "Give an epsilon, or an epsilon and a delta by comma, as 3.0,1e-5."
        raise OptionError(f"--limit is {text!r}.", remedy=remedy) from None
    return epsilon, delta


def _count_left(total: TotalLoss, loss: Loss, epsilon: float, delta: float) -> int:
    """How many more draws as dear as the dearest one of a partition a limit allows."""
    entries = sorted(loss.charged.values(), key=lambda one: one.epsilon)
    one = TotalLoss.of(entries[-1:])
    if not entries:
        return MOST_LEFT
    tried, delta = range(1, MOST_LEFT + 1), delta or max(MOST_DELTA, entries[-1].delta)
    return bisect_left(tried, True, key=lambda n: total.add(one, n).find_epsilon(delta) > epsilon)


def _show_account(
    place: str,
    losses: list[Loss],
    joined: dict[str, float],
    more: dict[str, dict[str, str]],
    overlaps: dict[str, dict[str, Overlap]],
) -> None:
    if not losses:
        say(f"{shown(place)}: nothing was ever charged.")
        return
    rows = [
        {
            # Enough to find it; all of it is in the JSON.
            "partition": loss.partition[:12],
            "epsilon": f"{loss.epsilon:g}",
            "with others": f"{joined[loss.partition]:g}",
            **{heading: cells[loss.partition] for heading, cells in more.items()},
            "delta": f"{loss.delta:.3g}",
            "releases": loss.n_charges,
            "unconfirmed": loss.n_open,
            "protects": ", ".join(sorted({entry.protects for entry in loss.entries})),
        }
        for loss in losses
    ]
    say(f"account {shown(place)}", tabulate(rows))
    for partition, others in overlaps.items():
        for other, how in others.items():
            why = " (equal profiles)" if how.by_profile else ""
            say(f"{how.mine:.3g} of the records of {partition[:12]} are in {other[:12]}{why}")


def forget_key_command(release: str) -> dict[str, Any]:
    """Destroy a key, or all keys of a release; of no name list all, never their secrets."""
    if release:
        forgotten = _forget(release)
        say(audit_text.say("keys_destroyed", n=len(forgotten), release=release))
        return {"forgotten": [entry.key_id for entry in forgotten]}
    entries, unreadable = list_keys(), list_unreadable()
    keys = [
        {
            "key": entry.key_id,
            "made": entry.created,
            "source": entry.binding.source,
            "model": entry.binding.model,
            "forgotten": entry.forgotten,
        }
        for entry in entries
    ]
    # Enough of a digest to find it; all of it is in the JSON.
    short = dict.fromkeys(("source", "model"), 12)
    rows = [{name: (one or "")[: short.get(name)] for name, one in key.items()} for key in keys]
    say(tabulate(rows) if rows else "There are no keys.")
    for key_id in unreadable:
        say(f"{key_id}: damaged, not private, or not a key")
    known = [key | {"runs": list(entry.runs)} for key, entry in zip(keys, entries, strict=True)]
    return {"keys": known, "unreadable": list(unreadable)}


def _forget(name: str) -> tuple[KeyEntry, ...]:
    """Of a release's place all its keys, else the key of this name."""
    if not exists(name):
        return (forget_key(name),)
    forgotten = forget_keys(str(read_header(name, "release")["run"]))
    if not forgotten:
        problem = f"The release {shown(name)} drew from no key of this key folder."
        remedy = "Only mappings and noise draw at random; see PRIVPIPE_KEYS for the folder."
        raise StoreError(problem, remedy=remedy, code="key-unknown")
    return forgotten


def certs_command(folder: str, hosts: tuple[str, ...], days: int, *, renew: bool) -> dict[str, Any]:
    """Make or renew them; see `make_certificates`."""
    made = certificates.make_certificates(folder, hosts, days, renew=renew)
    config = processes.write_configuration(folder)
    for one in made:
        say(f"made     {one.path}  until {one.expires:%Y-%m-%d}")
    say(f"use      export DASK_CONFIG={config}")
    return {
        "certificates": {
            str(one.path): {"expires": one.expires.isoformat(), "hosts": list(one.hosts)}
            for one in made
        },
        "dask_config": str(config),
    }


def sign_command(release: str, key: str, *, new_key: bool) -> dict[str, Any]:
    """Sign a release with a key, made first where `new_key`; see `sign_release`."""
    if new_key:
        say(f"made      {key}, for you alone, and {signing.make_signing_key(key)}, for readers")
    with work_bar.showing("sign", "objects") as listen:
        made = signing.sign_release(release, key, listen)
    place = signing.signature_url(release)
    say(f"signed    {made.n_objects:,} objects of {shown(release)}, by key {made.keyid[:16]}")
    say(f"hand out  {shown(place)} with the release; the public key on another way")
    return {"signature": shown(place), **asdict(made)}


def verify_command(release: str, key: str, *, after: str) -> dict[str, Any]:
    """Check a release against its signature; see `verify_signature`."""
    with work_bar.showing("verify", "objects") as listen:
        made = signing.verify_signature(release, key, after=after, listen=listen)
    said = {"objects": f"{made.n_objects:,}", "signed": made.signed, "key": made.keyid[:16]}
    of_release = {name: made.release.get(name, "") for name in ("run", "method", "published")}
    say(tabulate([{"key": name, "value": one} for name, one in (said | of_release).items()]))
    say("Every object is what its owner signed.")
    return {"verified": True, **asdict(made)}
