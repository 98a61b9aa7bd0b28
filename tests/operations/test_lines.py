"""Lines of generations are never mixed; what is known is never cleaned again; nothing leaks."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import privpipe
from privpipe.errors import IncompleteReleaseError, OptionError, PrivpipeError, StoreError
from privpipe.flows import increment_flow
from privpipe.store.access.workspace import remove_place
from privpipe.store.collections.growing_collection import (
    open_whole_collection,
    purge_collection,
    read_partitions,
)
from privpipe.store.releases.lazy_release import open_release
from tests.operations.increments import append, configure, release
from tests.store.serial_run import make_options, run_serially, serial_flows, write_small_collection

RECORDS = [np.random.default_rng(n).normal(size=(45, 3)).round(4) for n in range(3)]


def test_line__another_option_begins_a_new_one_of_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = configure(tmp_path)
    url = options.release.path
    append(tmp_path, "monday-secret", RECORDS[0], 1)
    assert release(options) == "published"
    append(tmp_path, "tuesday-secret", RECORDS[1], 2)
    made: list[str] = []
    real = increment_flow.check_part_of
    monkeypatch.setattr(
        increment_flow,
        "check_part_of",
        lambda o, line, p, part: made.append(p.name) or real(o, line, p, part),
    )
    assert release(options) == "published"
    assert made == ["tuesday-secret"], "what is known is not cleaned again"
    first = privpipe.open_release(url)
    assert release(configure(tmp_path, budget=0.3)) == "published"
    assert made == ["tuesday-secret", "monday-secret", "tuesday-secret"]
    second = privpipe.open_release(url)
    lines = [one.attrs["privpipe"]["line"] for one in (first, second)]
    assert lines[0] != lines[1]
    assert second.sizes["record"] == first.sizes["record"] == 90
    assert not np.array_equal(first.features.values, second.features.values)
    digests = [partition.content for partition in read_partitions(str(tmp_path / "growing.zarr"))]
    for path in (tmp_path / "release.zarr").rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        for secret in ("monday-secret", "tuesday-secret", *digests):
            assert secret.encode() not in content, path


def test_header__of_a_growing_release_rounds_its_promise_as_any_does(tmp_path: Path) -> None:
    """Digits are a channel: the promise of a growing release was published with all of them."""
    options = configure(tmp_path, budget=0.012345678901234)
    append(tmp_path, "a", RECORDS[0], 1)
    assert release(options) == "published"
    grown = privpipe.open_release(options.release.path).attrs["privpipe"]
    assert grown["guarantee"]["number"] == 0.0123457
    url = str(tmp_path / "whole.zarr")
    write_small_collection(url)
    with serial_flows():
        run_serially(make_options(url, str(tmp_path / "whole_release.zarr")))
    whole = privpipe.open_release(str(tmp_path / "whole_release.zarr")).attrs["privpipe"]
    of_fit = {"method", "method_source", "options", "guarantee", "promise", "audit"}
    assert of_fit | {"training_digest", "model_digest"} <= set(grown) & set(whole)
    assert grown["guarantee"].keys() == whole["guarantee"].keys()


def test_reader__of_a_part_that_goes_meanwhile_gets_an_error_and_no_nan(tmp_path: Path) -> None:
    """Zarr reads a missing chunk as NaN, and NaN says that a record is withheld."""
    options = configure(tmp_path)
    for number, name in enumerate("ab"):
        append(tmp_path, name, RECORDS[number], number + 1)
    assert release(options) == "published"
    opened = open_release(options.release.path)
    assert np.isfinite(opened.features.values).all()
    first = min((tmp_path / "release.zarr/parts").iterdir())
    for gone in (first / "zarr.json", first / "features", first):
        gone.unlink() if gone.is_file() else shutil.rmtree(gone)
        with pytest.raises(IncompleteReleaseError, match="no longer what it was"):
            opened.features.values  # noqa: B018


def test_reader__of_a_whole_release_that_goes_meanwhile_gets_an_error_and_no_nan(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "release.zarr")
    write_small_collection(str(tmp_path / "people.zarr"))
    with serial_flows():
        run_serially(make_options(str(tmp_path / "people.zarr"), url))
    opened, known = open_release(url), len(open_release(url).features)
    assert np.isfinite(opened.features.values).all()
    again = pickle.loads(pickle.dumps(opened))  # as it reaches a worker
    remove_place(url)
    for read in (
        lambda: opened.features.values,
        lambda: opened.place.values,
        lambda: opened.features[known - 1].values,
        lambda: again.features.mean().compute(),
    ):
        with pytest.raises(IncompleteReleaseError, match="no longer what it was"):
            read()


def test_incremental__what_cannot_be_released_in_parts_is_refused(tmp_path: Path) -> None:
    options = configure(tmp_path)
    append(tmp_path, "a", RECORDS[0], 1)
    with pytest.raises(OptionError, match="grows"):
        release(options.model_copy(update={"training": None}))
    with pytest.raises(StoreError, match="other records"):
        append(tmp_path, "a", RECORDS[1], 1)
    with pytest.raises(StoreError, match="already, as"):
        append(tmp_path, "b", RECORDS[0], 1)
    assert append(tmp_path, "a", RECORDS[0], 1) is False
    assert append(tmp_path, "a", RECORDS[1], 1, replacing=True) is True


@pytest.mark.parametrize("how", ["a link", "a path"])
def test_incremental__a_stranger_s_parts_lead_nowhere_else(tmp_path: Path, how: str) -> None:
    """The reader's own data would be copied out by an export, or swept away by a run."""
    options = configure(tmp_path)
    append(tmp_path, "a", RECORDS[0], 1)
    release(options)
    mine = tmp_path / "mine"
    mine.mkdir()
    for kind, room in (("release", "parts"), ("growing", "partitions")):
        url = tmp_path / f"{kind}.zarr"
        (part,) = (url / room).iterdir()
        if how == "a link":
            shutil.move(part, mine / kind)
            part.symlink_to(mine / kind)
        else:
            for number in (url / "generations").iterdir():
                body = json.loads(number.read_text())["body"]
                body = body.replace(part.name, f"../../mine/{kind}")
                digest = hashlib.sha256(body.encode()).hexdigest()
                number.write_text(json.dumps({"sha256": digest, "body": body}))
    kept = {path: path.stat().st_mtime_ns for path in mine.rglob("*")}
    refused = r"is a link|as something inside it"
    with pytest.raises(PrivpipeError, match=refused):
        _ = open_release(str(tmp_path / "release.zarr")).features.values
    with pytest.raises(PrivpipeError, match=refused):
        open_whole_collection(str(tmp_path / "growing.zarr"))
    with suppress(PrivpipeError):
        release(options)
    purge_collection(str(tmp_path / "growing.zarr"))
    assert {path: path.stat().st_mtime_ns for path in mine.rglob("*")} == kept
