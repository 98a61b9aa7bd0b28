"""People are charged as people: the same records under another digest pay into one account."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.command.key_commands import account_command
from privpipe.errors import FormatError, GuaranteeError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.records.schema import CollectionSchema, Partition, Variable
from privpipe.store.collections.writing import write_collection
from tests.flows.test_noisy_run import ALONE, Bench
from tests.standard import make_standard, write_standard

N = 240
PUBLIC = ALONE | {"public": "false"}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    (tmp_path / "places").mkdir()
    write_standard(str(tmp_path / "places" / "public.zarr"), 300, seed=5)
    return Bench(tmp_path / "places", tmp_path, monkeypatch)


def write_people(
    bench: Bench, name: str, x: np.ndarray, *, cuts: tuple[int, ...] = (), **given: np.ndarray
) -> None:
    """Some records as a collection, with the variables of the standard ones."""
    _, standard = make_standard(len(x))
    person = given.get("person", np.arange(len(x)))
    columns = {
        "features": x,
        "late": given.get("late", standard["late"]).astype(np.int8),
        "party": standard["party"].astype(np.int8),
        "person": person.astype(np.int32),
    }
    ends = zip((0, *cuts), (*cuts, len(x)), strict=True)
    schema = CollectionSchema(
        n_records=len(x),
        n_features=x.shape[1],
        dtype="float64",
        chunk_rows=50,
        variables=(
            Variable("late", "int8", ("no", "yes")),
            Variable("party", "int8", ("left", "middle", "right")),
            Variable("person", "int32"),
        ),
        feature_names=tuple(f"feature_{j}" for j in range(x.shape[1])),
        partitions=tuple(Partition(f"p{a}", a, b - a) for a, b in ends) if cuts else (),
    )

    def blocks() -> Iterator[Mapping[str, Any]]:
        for start in range(0, len(x), 50):
            yield {key: values[start : start + 50] for key, values in columns.items()}

    write_collection(str(bench.places / f"{name}.zarr"), schema, blocks())


def nudge(x: np.ndarray, by: float) -> np.ndarray:
    return np.asarray(x + by * x.std(axis=0) * np.random.default_rng(1).normal(size=x.shape))


def shuffle(x: np.ndarray) -> np.ndarray:
    return x[np.random.default_rng(2).permutation(len(x))]


VERSIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], dict[str, Any]]] = {
    "one value changed": (lambda x: np.vstack([x[:1] + 1e-9, x[1:]]), {}),
    "every value changed": (lambda x: x + 1e-9, {}),
    "a thousandth of a deviation": (lambda x: nudge(x, 1e-3), {}),
    "one record fewer": (lambda x: x[:-1], {}),
    "one record more": (lambda x: np.vstack([x, x[:1] + 30]), {}),
    "another order": (shuffle, {}),
    "other partitions": (lambda x: x, {"cuts": (100,)}),
    "a label": (lambda x: x, {"late": np.zeros(N)}),
}


def read_account() -> list[float]:
    return [one["joined_epsilon"] for one in account_command("")["partitions"]]


@pytest.mark.slow
def test_account__of_people_in_nine_files_shows_nine_losses(bench: Bench) -> None:
    x, _ = make_standard(N)
    write_people(bench, "first", x)
    bench.release("first", rows="first", **PUBLIC)
    for number, (change, more) in enumerate(VERSIONS.values()):
        changed = change(x)
        late = more.get("late", make_standard(len(changed))[1]["late"])
        write_people(bench, f"v{number}", changed, late=late, cuts=more.get("cuts", ()))
        bench.release(f"v{number}", rows=f"v{number}", **PUBLIC)
    assert min(read_account()) == 1.0 + len(VERSIONS)
    assert max(epsilon for epsilon, _, _ in bench.losses()) == 1.0  # by content alone
    assert bench.watch.now.privacy_loss == 1.0 + len(VERSIONS)


def test_limit__holds_for_people_and_not_for_files(bench: Bench) -> None:
    x, _ = make_standard(N)
    for name, some in (("first", x), ("second", nudge(x[:-3], 1e-3)), ("others", x + 40)):
        write_people(bench, name, some)
    limited = PUBLIC | {"privacy": "limit = 1.5"}
    bench.release("first", rows="first", **limited)
    with pytest.raises(GuaranteeError, match="the rest in 1 partitions with records of it"):
        bench.release("second", rows="second", **limited)
    assert not (bench.folder / "second.zarr").exists()
    assert read_account() == [1.0]  # what was refused is charged nothing
    with pytest.raises(GuaranteeError, match=r"has spent epsilon 1 .*; another 1 would be above"):
        check_stage(read_options(bench.configure("again", rows="second", **limited)))
    bench.release("others", rows="others", **limited)


def test_subject__is_known_whatever_the_features_are(bench: Bench) -> None:
    x, _ = make_standard(N)
    write_people(bench, "first", x)
    write_people(bench, "later", make_standard(N, seed=3)[0])  # the same people, measured anew
    named = PUBLIC | {"subject": 'subject = "person"'}
    bench.release("first", rows="first", **named)
    bench.release("later", rows="later", **named)
    assert read_account() == [2.0, 2.0]


def test_independent_records__pay_into_accounts_of_their_own(bench: Bench) -> None:
    for name, seed in (("first", 0), ("second", 11)):
        write_people(bench, name, make_standard(N, seed=seed)[0])
        bench.release(name, rows=name, **PUBLIC)
    assert read_account() == [1.0, 1.0]


@pytest.mark.parametrize("what", ["words", "links", "key"])
def test_sketch__that_is_missing_or_damaged_stops_every_charge(bench: Bench, what: str) -> None:
    x, _ = make_standard(N)
    write_people(bench, "first", x)
    write_people(bench, "other", x + 40)
    bench.release("first", rows="first", **PUBLIC)
    place = bench.folder / "account" / ".records"
    if what == "key":
        (place / "key").write_bytes(bytes(32))
    elif what == "links":
        shutil.rmtree(place / "links")
        shutil.rmtree(place / "words")
    else:
        (charged,) = (one["partition"] for one in account_command("")["partitions"])
        (words,) = (place / "words" / charged).iterdir()
        words.write_bytes(words.read_bytes()[:-32])
    with pytest.raises(FormatError) as caught:
        bench.release("other", rows="other", **PUBLIC)
    assert caught.value.code in ("sketch-missing", "sketch-damaged")
    assert not (bench.folder / "other.zarr").exists()
    if what == "links":  # its records can be read again
        account_command("", sketch=str(bench.places / "first.zarr"))
        bench.release("other", rows="other", **PUBLIC)


def test_training__that_is_said_to_be_public_holds_nobody_of_the_collection(bench: Bench) -> None:
    x, _ = make_standard(N)
    write_people(bench, "mine", x)
    write_people(bench, "said", np.vstack([make_standard(N, seed=4)[0], x[:20] + 1e-9]))
    with pytest.raises(GuaranteeError, match="are among them") as caught:
        bench.release("one", rows="mine", training="said")
    assert caught.value.code == "not-public"
    assert bench.losses() == []
