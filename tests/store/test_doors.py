"""Ways around what guards a release: exempt prefixes, links, a lock given up too early, strays."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from privpipe.command.run_command import purge_command
from privpipe.errors import IncompleteReleaseError, StoreError
from privpipe.store.access import workspace
from privpipe.store.access.lease import hold_lease
from privpipe.store.access.location import create_bytes
from privpipe.store.access.workspace import has_workspace, hold_workspace, workspace_url
from privpipe.store.arrays.blocks import Receipt, check_receipts
from privpipe.store.keyring.keys import list_keys, list_unreadable, make_key
from privpipe.store.releases.published import check_release
from privpipe.store.releases.release_writing import (
    ReleasePlan,
    check_foreign,
    prepare_release,
    publish_release,
)
from tests.store.release_keys import BINDING
from tests.store.releases.test_release import ARRAYS, RUN, write
from tests.store.serial_run import (
    make_options,
    read_tree,
    run_serially,
    serial_flows,
    write_small_collection,
)


@pytest.fixture
def plan(tmp_path: Path) -> ReleasePlan:
    plan = ReleasePlan(RUN, str(tmp_path / "release.zarr"), ARRAYS)
    prepare_release(plan)
    return plan


@pytest.fixture
def receipts(plan: ReleasePlan) -> dict[int, Receipt]:
    return check_receipts([write(plan, chunk) for chunk in range(4)], ARRAYS, RUN)


@pytest.mark.parametrize(
    "key",
    ["receipts/incomes.csv", "receipts/raw/zarr.json", "receipts/rows/c/9/9", "receipts/.rows"],
)
def test_publish__lets_nothing_in_beside_the_receipts(
    plan: ReleasePlan, receipts: dict[int, Receipt], key: str
) -> None:
    stray = Path(plan.data_url) / key
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(b"of a confidential variable")
    with pytest.raises(IncompleteReleaseError, match="holds 1 objects that the plan"):
        check_foreign(plan)
    with pytest.raises(IncompleteReleaseError, match="holds 1 objects that the plan"):
        publish_release(plan, receipts, {})
    assert not Path(plan.url).exists()
    stray.unlink()
    for parent in (p for p in stray.parents if p.name not in ("receipts", "release")):
        with suppress(OSError):  # not empty, or none of ours
            parent.rmdir()
    publish_release(plan, receipts, {})
    check_release(plan.url, verify=True)


@pytest.mark.parametrize("name", ["evil", "features/c/9", "receipts/rows/of persons/x"])
def test_publish__an_empty_folder_of_somebody_is_named_and_not_published(
    plan: ReleasePlan, receipts: dict[int, Receipt], name: str
) -> None:
    (Path(plan.data_url) / name).mkdir(parents=True)
    with pytest.raises(IncompleteReleaseError, match=f"does not know \\({name}\\)"):
        publish_release(plan, receipts, {})
    assert not Path(plan.url).exists()


@pytest.mark.parametrize("name", ["receipts", "receipts/rows"])
def test_publish__an_empty_folder_of_a_killed_publishing_is_filled(
    plan: ReleasePlan, receipts: dict[int, Receipt], name: str
) -> None:
    (Path(plan.data_url) / name).mkdir(parents=True)
    publish_release(plan, receipts, {})
    check_release(plan.url, verify=True)


def test_publish__goes_on_over_receipts_of_a_killed_publishing(
    plan: ReleasePlan, receipts: dict[int, Receipt], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"feature_names": [f"f{j}" for j in range(plan.arrays[0].shape[1])]}
    with monkeypatch.context() as patch:
        patch.setattr(
            "privpipe.store.releases.release_writing.root_document", lambda *_: raise_killed()
        )
        with pytest.raises(OSError, match="killed"):
            publish_release(plan, receipts, named)
    for name in ("receipts/crc32c", "feature"):
        assert (Path(plan.data_url) / name / "zarr.json").exists()
    check_foreign(plan)
    publish_release(plan, receipts, named)
    check_release(plan.url, verify=True)


def raise_killed() -> None:
    raise OSError(5, "killed by the test")


@pytest.mark.parametrize("inside", ["features", "features/c/1", "features/c/1/0", "receipts"])
def test_publish__follows_no_link_in_the_release(
    plan: ReleasePlan, receipts: dict[int, Receipt], tmp_path: Path, inside: str
) -> None:
    place, elsewhere = Path(plan.data_url) / inside, tmp_path / "elsewhere"
    if place.exists():
        place.rename(elsewhere)
    else:
        elsewhere.mkdir()
    place.symlink_to(elsewhere)
    with pytest.raises(StoreError, match="is a link") as caught:
        publish_release(plan, receipts, {})
    assert caught.value.code == "link"
    assert not Path(plan.url).exists()


LINKS = ("", "release", "model.zarr", "ledger", "kept", "dask", "sources", "lock", "state.json")


@pytest.mark.parametrize("name", [*LINKS, "release/features", "kept/sums"])
def test_run__follows_no_link_into_the_source(tmp_path: Path, name: str) -> None:
    source = tmp_path / "records.zarr"
    write_small_collection(str(source))
    before, modes = read_tree(source), {p: p.stat().st_mode for p in source.rglob("*")}
    target = source / "zarr.json" if name in ("lock", "state.json") else source
    work = Path(workspace_url(str(tmp_path / "release.zarr")))
    place = work / name if name else work
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)
    with serial_flows(), pytest.raises(StoreError, match=r"link|lock") as caught:
        run_serially(make_options(str(source), str(tmp_path / "release.zarr")))
    assert caught.value.code == "link"
    assert not (tmp_path / "release.zarr").exists()
    purge_command(str(tmp_path / "release.zarr"))
    assert not os.path.lexists(place)
    assert read_tree(source) == before
    assert {p: p.stat().st_mode for p in source.rglob("*")} == modes


def test_hold_workspace__makes_a_folder_private_that_others_may_read(tmp_path: Path) -> None:
    work = Path(workspace_url(str(tmp_path / "release.zarr")))
    work.mkdir(mode=0o755)
    with hold_workspace(str(tmp_path / "release.zarr")):
        assert stat.S_IMODE(work.stat().st_mode) == 0o700


def test_purge__holds_the_lock_until_all_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that starts while a purge removes files keeps every file that it writes."""
    url = str(tmp_path / "release.zarr")
    with hold_workspace(url):
        (Path(workspace_url(url)) / "state.json").write_text("{}")
    removing, remove = threading.Event(), shutil.rmtree
    began = threading.Event()
    held: list[bool] = []

    def remove_slowly(path: str, **options: bool) -> None:
        with open(os.path.join(path, "lock")) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(False)
            except BlockingIOError:
                held.append(True)
        removing.set()
        assert began.wait(30)
        remove(path, **options)

    monkeypatch.setattr(workspace.shutil, "rmtree", remove_slowly)
    purging = threading.Thread(target=purge_command, args=(url,))
    purging.start()
    assert removing.wait(30)
    with hold_workspace(url):
        ours = Path(workspace_url(url)) / "state.json"
        ours.write_text('{"of": "the new run"}')
        began.set()
        purging.join()
        assert ours.read_text() == '{"of": "the new run"}'
        with pytest.raises(StoreError, match="A run is writing"):
            purge_command(url)
    assert held == [True]


def test_purge__removes_what_an_interrupted_removal_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "release.zarr")
    with hold_workspace(url), monkeypatch.context() as patch:
        patch.setattr(workspace.shutil, "rmtree", lambda *_, **__: None)
        workspace.remove_workspace(url)
    assert has_workspace(url)
    assert purge_command(url)["removed"] is True
    assert not has_workspace(url)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match=r"nothing at .*release\.zarr, and no workspace") as caught:
        purge_command(url)  # as of a misspelt place, which was a success
    assert caught.value.code == "not-found"


def test_purge__where_nothing_can_be_locked_waits_for_the_lease(place: str) -> None:
    url = f"{place}/release.zarr"
    with hold_lease(workspace_url(url)), pytest.raises(StoreError, match="Another run holds"):
        purge_command(url)
    create_bytes(f"{workspace_url(url)}/state.json", b"{}")
    assert purge_command(url)["removed"] is True
    assert not has_workspace(url)


class Refusing(BaseHTTPRequestHandler):
    """A store that answers a put as other stores than Amazon's do, without `Condition`."""

    answers: ClassVar[list[tuple[int, str]]] = []
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        status, code = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode() if code else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, bucket: str) -> Iterator[str]:
    """A bucket of such a store."""
    from tests.store.conftest import _close_sessions

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    _close_sessions()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    yield "s3://bucket"
    _close_sessions()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("answers", "made"),
    [
        ([(412, "PreconditionFailed")], False),
        ([(412, "SomethingElse")], False),
        ([(412, "")], False),
        ([(409, "ConditionalRequestConflict")], False),
        ([(409, "ConditionalRequestConflict"), (200, "")], True),
        ([(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")], False),
    ],
)
def test_create_bytes__decides_by_the_status_alone(
    refusing: str, answers: list[tuple[int, str]], made: bool
) -> None:
    Refusing.answers = list(answers)
    assert create_bytes(f"{refusing}/root", b"{}") is made


def test_create_bytes__raises_what_is_no_refusal(refusing: str) -> None:
    Refusing.answers = [(403, "AccessDenied")]
    with pytest.raises(OSError, match=r"no|denied|Forbidden"):
        create_bytes(f"{refusing}/root", b"{}")


def test_list_keys__is_not_broken_by_a_stray_file(keys_home: Path) -> None:
    make_key("monday", BINDING)
    make_key("tuesday", BINDING)
    (keys_home / "notes.key").write_bytes(b"not a key")
    (keys_home / "open.json").write_bytes(b"{}")
    (keys_home / "open.json").chmod(0o644)
    (keys_home / "link.key").symlink_to(keys_home / "monday.key")
    (keys_home / "folder.key").mkdir()
    (keys_home / "monday.json").write_bytes(b"damaged")  # the key itself still tells
    assert [entry.key_id for entry in list_keys()] == ["monday", "tuesday"]
    assert list_unreadable() == ("folder", "link", "notes", "open")
