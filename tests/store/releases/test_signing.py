"""A signed release: whoever changes anything is found, by us and by a stranger's tools."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization

from privpipe.errors import (
    FormatError,
    IncompleteReleaseError,
    OptionError,
    PrivpipeError,
    StoreError,
)
from privpipe.store.arrays.blocks import write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.releases import signing
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release, publish_release
from privpipe.store.releases.signing import sign_release, signature_url, verify_signature
from tests.operations import increments
from tests.store.releases.test_release import CHUNK_ROWS, write

ARRAYS = (ArrayPlan(FEATURES, (10, 3), CHUNK_ROWS, "float64"), ArrayPlan("place", (10,), 5, "int8"))


@pytest.fixture
def key(tmp_path: Path) -> str:
    signing.make_signing_key(str(tmp_path / "owner.pem"))
    return str(tmp_path / "owner.pem")


@pytest.fixture
def public(key: str) -> str:
    return key.replace(".pem", ".pub")


def publish(url: str, run: str = "0a1b2c3d") -> None:
    plan = ReleasePlan(run, url, ARRAYS)
    prepare_release(plan)
    receipts = {chunk: write(plan, chunk) for chunk in range(2)}
    publish_release(plan, receipts, {"method": "null_space", "options_sha256": "a" * 64})


@pytest.fixture
def release(tmp_path: Path, key: str) -> str:
    url = str(tmp_path / "people.zarr")
    publish(url)
    sign_release(url, key)
    return url


def test_sign__says_what_it_covers__and_verifies(release: str, public: str) -> None:
    made = verify_signature(release, public)
    n_files = sum(one.is_file() for one in Path(release).rglob("*"))
    assert made.n_objects == n_files
    assert made.release["options_sha256"] == "a" * 64
    assert made.release["run"] == "0a1b2c3d"


def change(files: list[Path], rng: np.random.Generator) -> str:
    """One accident or attack: a bit, a swap, a loss, a file too many, a cut, an older file."""
    one, other = (files[i] for i in rng.choice(len(files), 2, replace=False))
    how = str(rng.choice(["flip", "swap", "drop", "add", "cut"]))
    content = bytearray(one.read_bytes())
    if how == "flip":
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
        one.write_bytes(content)
    elif how == "swap":
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif how == "drop":
        one.unlink()
    elif how == "add":
        # What looks like an unfinished write may hold anything as well.
        end = str(rng.choice(["~", ".partial"]))
        one.with_name(f"{one.name}{end}").write_bytes(content)
    else:
        one.write_bytes(content[: rng.integers(len(content))])
    return f"{how} {one.name} {other.name}"


@pytest.mark.parametrize("n", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_verify__finds_every_change_of_any_file(release: str, public: str, n: int) -> None:
    sound, rng = read_signed(release), np.random.default_rng(n)
    for _ in range(n):
        said = change(sorted(sound), rng)
        if read_signed(release) != sound:  # two files may be equal
            with pytest.raises(PrivpipeError):
                print(said, verify_signature(release, public))
        for path in read_signed(release).keys() - sound.keys():
            path.unlink()
        for path, content in sound.items():
            path.write_bytes(content)


KINDS = ("flip", "cut", "replay", "swap", "drop", "add")


def publish_many(url: str, run: str, first: int, n_chunks: int) -> dict[Path, bytes]:
    """A release of so many chunks of two arrays, of its own records: bytes by path within it."""
    shapes = ((FEATURES, (5 * n_chunks, 3), "float64"), ("place", (5 * n_chunks,), "int8"))
    arrays = tuple(ArrayPlan(name, shape, CHUNK_ROWS, dtype) for name, shape, dtype in shapes)
    plan, receipts = ReleasePlan(run, url, arrays), {}
    prepare_release(plan)
    for chunk in range(n_chunks):
        rng = np.random.default_rng(first + chunk)
        place = rng.integers(0, 100, CHUNK_ROWS).astype(np.int8)
        block = {FEATURES: rng.normal(size=(CHUNK_ROWS, 3)), "place": place}
        receipts[chunk] = write_block(plan.data_url, arrays, chunk, block, run)
    publish_release(plan, receipts, {"method": "null_space", "options_sha256": run * 8})
    root = Path(url)
    return {one.relative_to(root): one.read_bytes() for one in root.rglob("*") if one.is_file()}


def spoil(
    root: Path,
    how: str,
    files: list[Path],
    objects: dict[Path, bytes],
    older: dict[Path, bytes],
    rng: np.random.Generator,
) -> tuple[int, int, int] | None:
    """One change to objects that no other change has: how many so differ, are missing, are new.

    None where it would change nothing.
    """
    one, other = files
    content = bytearray(objects[one])
    if how == "drop":
        (root / one).unlink()
        return 0, 1, 0
    if how == "add":
        (root / one).with_name(f"{one.name}{rng.choice(['~', '.partial'])}").write_bytes(content)
        return 0, 0, 1
    if how == "swap":
        if objects[one] == objects[other]:
            return None
        (root / one).write_bytes(objects[other])
        (root / other).write_bytes(objects[one])
        return 2, 0, 0
    if how == "flip":
        content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    elif how == "cut":
        content = content[: rng.integers(len(content))]
    else:
        content = bytearray(older[one])
    if content == objects[one]:
        return None
    (root / one).write_bytes(content)
    return 1, 0, 0


@pytest.mark.parametrize(
    ("n", "n_chunks"), [(200, 20), pytest.param(100_000, 200, marks=pytest.mark.slow)]
)
def test_verify__finds_each_of_many_changes_at_once(
    tmp_path: Path, key: str, public: str, n: int, n_chunks: int
) -> None:
    """Up to 200 at a time, each to objects of its own: so many are reported."""
    older = publish_many(str(tmp_path / "older.zarr"), "0a1b2c3d", n_chunks, n_chunks)
    url, rng, n_made = str(tmp_path / "people.zarr"), np.random.default_rng(n), 0
    objects, root = publish_many(url, "ffffffff", 0, n_chunks), Path(url)
    sign_release(url, key)
    names, met = sorted(objects), set[str]()
    while n_made < n:
        chosen = [names[i] for i in rng.permutation(len(names))[: 2 * n_chunks]]
        made = []
        for number in range(n_chunks):
            how = str(rng.choice(KINDS))
            pair = chosen[2 * number : 2 * number + 2]
            if (effect := spoil(root, how, pair, objects, older, rng)) is not None:
                made.append(effect)
                met.add(how)
        differ, missing, new = np.sum(made, axis=0)
        said = f"{differ} objects differ from what was signed, {missing} are missing, and {new} "
        with pytest.raises(IncompleteReleaseError, match=f"{said}were not signed"):
            verify_signature(url, public)
        for path in chosen:
            (root / path).write_bytes(objects[path])
            for end in ("~", ".partial"):
                (root / path).with_name(f"{path.name}{end}").unlink(missing_ok=True)
        n_made += len(made)
    assert met == set(KINDS)
    verify_signature(url, public)


@pytest.mark.parametrize("n", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_verify__finds_every_change_of_the_signature_itself(
    release: str, public: str, key: str, tmp_path: Path, n: int
) -> None:
    other = str(tmp_path / "other.zarr")
    publish(other, run="ffffffff")
    sign_release(other, key)
    rng, names = np.random.default_rng(n), (signing.SUMS, signing.STATEMENT)
    here, there = (Path(signature_url(one)) for one in (release, other))
    sound, older = ([(at / name).read_bytes() for name in names] for at in (here, there))
    for _ in range(n):
        which, how = int(rng.integers(2)), str(rng.choice(KINDS[:-1]))
        spoilt = [bytearray(one) for one in sound]
        if how == "flip":
            spoilt[which][rng.integers(len(spoilt[which]))] ^= 1 << rng.integers(8)
        elif how == "cut":
            del spoilt[which][rng.integers(len(spoilt[which])) :]
        elif how == "replay":  # one of the two, or both, which are sound together
            spoilt[which] = bytearray(older[which])
            spoilt[0] = bytearray(older[0]) if rng.integers(2) else spoilt[0]
        elif how == "swap":
            spoilt.reverse()
        for name, content in zip(names, spoilt, strict=True):
            (here / name).write_bytes(content)
        if how == "drop":
            (here / names[which]).unlink()
        with pytest.raises(PrivpipeError):
            print(how, verify_signature(release, public))
    for name, content in zip(names, sound, strict=True):
        (here / name).write_bytes(content)
    verify_signature(release, public)


def read_signed(release: str) -> dict[Path, bytes]:
    """Every file of a release, and the two of its signature."""
    files = [one for one in Path(release).rglob("*") if one.is_file()]
    files += [Path(signature_url(release)) / name for name in (signing.SUMS, signing.STATEMENT)]
    return {one: one.read_bytes() for one in files if one.exists()}


def test_verify__finds_an_older_release_put_back__by_its_time(
    release: str, public: str, key: str
) -> None:
    made = verify_signature(release, public)
    assert verify_signature(release, public, after="2020-01-01").signed == made.signed
    with pytest.raises(FormatError, match="not after"):
        verify_signature(release, public, after=made.signed)
    with pytest.raises(OptionError, match="is no time"):
        verify_signature(release, public, after="yesterday")


def test_verify__refuses_the_signature_of_another_release(
    release: str, public: str, key: str, tmp_path: Path
) -> None:
    other = str(tmp_path / "other.zarr")
    publish(other, run="ffffffff")
    sign_release(other, key)
    shutil.rmtree(signature_url(release))
    shutil.copytree(signature_url(other), signature_url(release))
    with pytest.raises(IncompleteReleaseError, match="differ from what was signed"):
        verify_signature(release, public)


def _forge(release: str, edit: Callable[[dict[str, object]], object]) -> None:
    path = Path(signature_url(release)) / signing.STATEMENT
    envelope = json.loads(path.read_text())
    edit(envelope)
    path.write_text(json.dumps(envelope))


def test_verify__believes_no_word_of_a_statement_before_its_signature(
    release: str, public: str
) -> None:
    payload = base64.b64encode(b'{"predicateType": 1}').decode()
    _forge(release, lambda envelope: envelope.update(payload=payload))
    with pytest.raises(FormatError, match="not signed with this key"):
        verify_signature(release, public)
    _forge(release, lambda envelope: envelope.update(signatures=[]))
    with pytest.raises(FormatError, match="cannot be read"):
        verify_signature(release, public)
    _forge(release, lambda envelope: envelope.update(payload="§"))
    with pytest.raises(FormatError, match="cannot be read"):
        verify_signature(release, public)
    shutil.rmtree(signature_url(release))
    with pytest.raises(FormatError, match="has no signature"):
        verify_signature(release, public)


def test_verify__leaves_no_bit_of_the_envelope_free(release: str, public: str) -> None:
    path = Path(signature_url(release)) / signing.STATEMENT
    sound = path.read_text()
    for old, new in (
        ('"keyid": "', '"keyid": "0'),
        ("{", "{ "),
        ('"payload"', '"x": 1, "payload"'),
    ):
        path.write_text(sound.replace(old, new, 1))
        with pytest.raises(FormatError, match="was changed"):
            verify_signature(release, public)


def test_keys__another_owners_is_refused__and_none_is_in_a_message(
    release: str, public: str, key: str, tmp_path: Path
) -> None:
    signing.make_signing_key(str(tmp_path / "thief.pem"))
    with pytest.raises(FormatError, match="not signed with this key"):
        verify_signature(release, str(tmp_path / "thief.pub"))
    secret = Path(key).read_text().splitlines()[1]
    for wrong in (lambda: verify_signature(release, key), lambda: sign_release(release, public)):
        with pytest.raises(OptionError) as caught:
            wrong()
        assert secret not in str(caught.value)
    assert stat.S_IMODE(Path(key).stat().st_mode) == 0o600
    with pytest.raises(OptionError, match="never replaced"):
        signing.make_signing_key(key)


def test_keys__of_a_full_disk_leave_nothing_that_would_be_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty key was left, which no command would replace and none could read."""
    path = str(tmp_path / "owner.pem")
    with pytest.raises(StoreError, match="cannot be written"):
        signing.make_signing_key(str(tmp_path / "nowhere" / "owner.pem"))
    with monkeypatch.context() as patch:
        fill_disk(patch, after=1)
        with pytest.raises(StoreError, match="disk is full"):
            signing.make_signing_key(path)
    assert list(tmp_path.iterdir()) == []
    signing.make_signing_key(path)


def fill_disk(patch: pytest.MonkeyPatch, after: int) -> None:
    """Files that are opened after so many are on a disk that is full."""
    opened, n_opened = open, 0

    def fail(*args: Any, **more: Any) -> Any:
        nonlocal n_opened
        file = opened(*args, **more)
        n_opened += 1
        if n_opened <= after:
            return file
        file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr("builtins.open", fail)


def test_verify__after_nothing_is_no_time(release: str, public: str) -> None:
    """An environment variable that is not set would have switched it off."""
    with pytest.raises(OptionError, match="is no time"):
        verify_signature(release, public, after="")


def test_refusals__send_readers_to_the_owner__and_owners_to_a_release(
    release: str, key: str, public: str, tmp_path: Path
) -> None:
    """A reader without a key was sent to make one of his own, which verifies nothing."""
    for wrong in (key, str(tmp_path / "none.pub")):
        with pytest.raises(OptionError) as caught:
            verify_signature(release, wrong)
        assert "from the release's owner" in caught.value.remedy
    with pytest.raises(OptionError) as caught:
        sign_release(release, public)
    assert "--new-key" in caught.value.remedy
    with pytest.raises(StoreError, match="can be read at"):
        verify_signature(str(tmp_path / "nothing.zarr"), public)
    (Path(release) / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is a link") as linked:
        verify_signature(release, public)
    assert "from their owner" in linked.value.remedy


def test_sign__refuses_what_is_damaged__or_has_strange_names(release: str, key: str) -> None:
    strange = Path(release) / "a\n0  b"
    strange.write_text("")
    with pytest.raises(FormatError, match="not of privpipe"):
        sign_release(release, key)
    strange.unlink()
    chunk = next(one for one in Path(release).rglob("c/*") if one.is_file())
    chunk.write_bytes(chunk.read_bytes()[::-1])
    with pytest.raises(IncompleteReleaseError):
        sign_release(release, key)


STRANGER = """
import base64, hashlib, json, sys
from cryptography.hazmat.primitives.serialization import load_pem_public_key

folder, key = sys.argv[1:]
envelope = json.load(open(f"{folder}/statement.json"))
payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"]
signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
signature = base64.b64decode(envelope["signatures"][0]["sig"])
load_pem_public_key(open(key, "rb").read()).verify(signature, signed)
sums = hashlib.sha256(open(f"{folder}/SHA256SUMS", "rb").read()).hexdigest()
assert json.loads(payload)["subject"][0]["digest"]["sha256"] == sums
"""


def test_verify__needs_nothing_of_ours(release: str, public: str) -> None:
    folder = signature_url(release)
    subprocess.run([sys.executable, "-I", "-c", STRANGER, folder, public], check=True)
    command = ["sha256sum", "--check", "--strict", "--quiet", f"{folder}/SHA256SUMS"]
    subprocess.run(command, cwd=release, check=True)
    page = (Path(signing.__file__).parents[3] / "docs/howto/verify_a_release.md").read_text()
    assert STRANGER.strip() in page


def test_sign__takes_a_key_of_openssl(release: str, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    private, public = str(tmp_path / "o.pem"), str(tmp_path / "o.pub")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    sign_release(release, private)
    assert verify_signature(release, public).n_objects > 0
    serialization.load_pem_public_key(Path(public).read_bytes())


@pytest.mark.slow
def test_sign__a_growing_release__is_signed_anew_when_it_grew(
    tmp_path: Path, key: str, public: str
) -> None:
    options, rng = increments.configure(tmp_path), np.random.default_rng(1)
    for number in (1, 2):
        increments.append(tmp_path, f"day-{number}", rng.normal(size=(60, 3)), number)
        increments.release(options)
        if number > 1:
            with pytest.raises(IncompleteReleaseError, match="signed anew"):
                verify_signature(options.release.path, public)
        sign_release(options.release.path, key)
        assert verify_signature(options.release.path, public).release["generation"] == number


def test_sign__in_a_bucket(bucket: str, key: str, public: str) -> None:
    url = f"{bucket}/people.zarr"
    publish(url)
    sign_release(url, key)
    assert verify_signature(url, public).n_objects > 8
