"""An account that forgot what releases recorded: each way to hide it, without whole runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import GuaranteeError, StoreError
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.runs.spend import check_remembered
from privpipe.pipeline.stages.check import check_stage
from privpipe.store.keyring.account_chain import AccountChain, append_link, read_chain
from tests.store.test_noisy_crash_points import home, make_noisy

__all__ = ["home"]

OTHER = {"chain": "o" * 64, "head": "p" * 64}


@pytest.fixture
def run(home: Path) -> Run:
    """A run into the folder `out`, charged to an account of three links."""
    checked = check_stage(make_noisy(home, home / "out"))
    for number in range(3):
        append_link(str(home / "out" / "account"), "charge", {"number": number})
    return checked


def read_account(run: Run) -> AccountChain:
    return read_chain(str(Path(run.release_url).parent / "account"))


def forget(chain: AccountChain, n_links: int) -> AccountChain:
    """The same account as it was when it had fewer links."""
    return replace(chain, links=chain.links[:n_links])


def write_release(
    place: Path, account: dict[str, str], *, source: str = "", kind: str = ""
) -> None:
    """As much of a release as its root says."""
    place.mkdir(parents=True)
    header: dict[str, Any] = {"format": "release", "account": account, "source_digest": source}
    header["guarantee"] = {"kind": kind or "local_dp"}
    root = {"zarr_format": 3, "node_type": "group", "attributes": {"privpipe": header}}
    (place / "zarr.json").write_text(json.dumps(root))


def is_refused(run: Run, chain: AccountChain) -> bool:
    try:
        check_remembered(run, chain)
    except GuaranteeError as error:
        return error.code == "account-behind"
    return False


@pytest.mark.parametrize("place", ["tuesday.zarr", "line.zarr/parts/ab12", "a.model.zarr", ".b"])
def test_check_remembered__finds_the_release_that_was_forgotten(run: Run, place: str) -> None:
    """Beside the release, a part of a line beside it, called as a model is, or hidden."""
    chain = read_account(run)
    write_release(Path(run.release_url).parent / place, chain.describe())
    assert not is_refused(run, chain)
    assert is_refused(run, forget(chain, 2))


def test_check_remembered__of_a_part_finds_the_release_beside_its_line(run: Run) -> None:
    chain = read_account(run)
    folder = Path(run.release_url).parent
    write_release(folder / "tuesday.zarr", chain.describe())
    release = run.options.release.model_copy(update={"path": f"{folder}/line.zarr/parts/ab12"})
    part = replace(run, options=run.options.model_copy(update={"release": release}))
    assert is_refused(part, forget(chain, 2))


def test_check_remembered__finds_the_parts_of_an_earlier_line(run: Run, tmp_path: Path) -> None:
    chain = read_account(run)
    write_release(tmp_path / "elsewhere.zarr" / "parts" / "ab12", chain.describe())
    earlier = (str(tmp_path / "elsewhere.zarr"),)
    audit = run.options.audit.model_copy(update={"earlier": earlier})
    named = replace(run, options=run.options.model_copy(update={"audit": audit}))
    assert not is_refused(named, chain)
    assert is_refused(named, forget(chain, 1))


@pytest.mark.parametrize("n_links", [0, 2])
def test_check_remembered__an_account_begun_anew_is_behind(run: Run, n_links: int) -> None:
    """A lost volume leaves an empty account, or another one as soon as any run has used it."""
    chain = forget(read_account(run), n_links)
    write_release(
        Path(run.release_url).parent / "tuesday.zarr", OTHER, source=run.collection.digest
    )
    assert is_refused(run, chain)


@pytest.mark.parametrize("other", [{"source": "another"}, {"kind": "none"}])
def test_check_remembered__other_records_may_have_another_account(
    run: Run, other: dict[str, str]
) -> None:
    place = Path(run.release_url).parent / "tuesday.zarr"
    write_release(place, OTHER, **{"source": run.collection.digest} | other)
    assert not is_refused(run, read_account(run))


def make_loop(place: Path) -> None:
    place.symlink_to(place)


def make_dangling(place: Path) -> None:
    place.symlink_to(place.parent / "nowhere")


def make_list(place: Path) -> None:
    place.mkdir()
    (place / "zarr.json").write_text('[{"attributes": 1}]')


def make_nested(place: Path) -> None:
    place.mkdir()
    (place / "zarr.json").write_text("[" * 100_000)


def make_folder(place: Path) -> None:
    (place / "zarr.json").mkdir(parents=True)


def make_socket_parts(place: Path) -> None:
    place.mkdir()
    os.mkfifo(place / "parts")


def make_words(place: Path) -> None:
    place.mkdir()
    account = {"chain": [1], "head": {"a": 1}}
    root = {"attributes": {"privpipe": {"account": account, "guarantee": 3}}}
    (place / "zarr.json").write_text(json.dumps(root))


@pytest.mark.timeout(30)
def test_check_remembered__names_a_pipe_and_does_not_wait_at_it(run: Run) -> None:
    place = Path(run.release_url).parent / "stranger.zarr"
    place.mkdir()
    os.mkfifo(place / "zarr.json")
    with pytest.raises(StoreError, match=r"stranger\.zarr/zarr\.json is no regular file"):
        check_remembered(run, read_account(run))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "make",
    [make_loop, make_dangling, make_list, make_nested, make_folder, make_socket_parts, make_words],
)
def test_check_remembered__what_a_stranger_puts_beside_is_no_release(
    run: Run, make: Callable[[Path], None]
) -> None:
    """It neither stops nor blinds: what stands behind it in the folder is still found."""
    folder, chain = Path(run.release_url).parent, read_account(run)
    make(folder / "stranger.zarr")
    assert not is_refused(run, chain)
    write_release(folder / "tuesday.zarr", chain.describe())
    assert is_refused(run, forget(chain, 2))
