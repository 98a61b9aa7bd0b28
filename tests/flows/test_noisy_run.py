"""Noisy releases from configuration to published bytes: one charge, equal bytes, and a limit.

The stages are called in this process, without Prefect: what is asked is what they do.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe import NullSpaceCleaner
from privpipe.cluster.estimate import estimate
from privpipe.cluster.executors.executor import Executor
from privpipe.command.key_commands import account_command
from privpipe.errors import GuaranteeError, InputError, OptionError, PrivpipeError, StoreError
from privpipe.numerics.noise.amplification import amplify_by_shuffling
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.resume import begin_or_resume, begin_stage
from privpipe.pipeline.runs.spend import describe_account
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.audit.audit_canaries import audit_canaries
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.clean import clean_stage, plan_release
from privpipe.pipeline.stages.forecast import forecast_run
from privpipe.pipeline.stages.publish import publish_stage
from privpipe.pipeline.stages.train import train_stage
from privpipe.promises import SHUFFLED_DELTA, SHUFFLED_EPSILON
from privpipe.report.audit_text import say
from privpipe.store.access.workspace import hold_workspace, remove_workspace, workspace_url
from privpipe.store.arrays.layout import FEATURES, read_header
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.keyring.account import Account
from privpipe.store.keyring.keys import forget_key, list_keys
from privpipe.store.models import write_model
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.standard import make_standard, write_standard

N, FILTER = 600, '[method.filter]\nname = "pca"\nn_filtered = 3\n'
PASSED = {"gate": {"state": "not gated", "sentence": "a test"}}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("noisy")
    for rows in (70, 600):
        write_standard(str(folder / f"{rows}.zarr"), N, chunk_rows=rows)
    write_standard(str(folder / "public.zarr"), 500, chunk_rows=100, seed=5)
    return folder


class Bench:
    """Configurations of one account, and the stages of their runs."""

    def __init__(self, places: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places, self.folder, self._patch = places, folder, monkeypatch
        monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(folder / "account"))
        self.watch = Watch()
        self.use_keys("keys")

    def use_keys(self, name: str) -> None:
        self._patch.setenv("PRIVPIPE_KEYS", str(self.folder / name))

    def configure(self, name: str, **given: Any) -> str:
        said = {
            "epsilon": 1.0,
            "rows": 70,
            "method": "",
            "privacy": "",
            "subject": "",
            "filter": FILTER,
            "release": "",
        }
        said |= {"public": "true", "nonfinite": "fail", "training": "public"} | given
        text = (
            f'[collection]\npath = "{self.places}/{said["rows"]}.zarr"\n'
            f'desired = ["late"]\nconfidential = ["party"]\n{said["subject"]}\n'
            f'[training]\npath = "{self.places}/{said["training"]}.zarr"\n'
            f"public = {said['public']}\n"
            f'[method]\nname = "noisy"\nepsilon = {said["epsilon"]}\n{said["method"]}\n'
            f"{said['filter']}[privacy]\n{said['privacy']}\n"
            f'[release]\npath = "{self.folder}/{name}.zarr"\nnonfinite = "{said["nonfinite"]}"\n'
            f"{said['release']}\n"
            "[audit]\nadversaries = []\n[gate]\nenforce = false\n[cluster]\nworkers = 0\n"
        )
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        return str(path)

    def release(self, name: str, **given: Any) -> Any:
        """Check, train, clean and publish; the released features."""
        run = check_stage(read_options(self.configure(name, **given)))
        with hold_workspace(run.release_url):
            run, _ = begin_or_resume(run)
            executor = Executor(self.watch.hear)
            trained = train_stage(run, executor)
            plan = plan_release(run, trained)
            run = begin_stage(
                run, "clean", model_digest=trained.model_digest, n_chunks=plan.chunks.n_chunks
            )
            cleaned = clean_stage(run, trained, plan, executor)
            publish_stage(run, trained, cleaned, PASSED, executor.listener)
            remove_workspace(run.release_url)
        return open_release(run.release_url, verify=True)

    def header(self, name: str) -> Any:
        return read_header(str(self.folder / f"{name}.zarr"), "release")

    def losses(self) -> list[tuple[float, int, int]]:
        account = Account(str(self.folder / "account"))
        return [(loss.epsilon, loss.n_charges, loss.n_open) for loss in account.read_all()]


@pytest.fixture
def bench(places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(places, tmp_path, monkeypatch)


def digest(folder: Path) -> str:
    sha = hashlib.sha256()
    for path in sorted(p for p in (folder / "features").rglob("*") if p.is_file()):
        sha.update(path.read_bytes())
    return sha.hexdigest()


def test_run__of_shuffled_records_says_what_the_order_hides(bench: Bench) -> None:
    """And only there: not in the order of the source, nor where something else tells who is who."""
    x, variables = make_standard(N)
    names = [f"feature_{j}" for j in range(x.shape[1])]
    table = pd.DataFrame(x, columns=names).assign(**variables)
    table["late"] = np.array(["no", "yes"])[table["late"].astype(int)]
    table["party"] = np.array(["left", "middle", "right"])[table["party"].astype(int)]
    table.to_csv(bench.folder / "t.csv", index=False)
    layout = SourceLayout(labels=("height", "late", "income", "party"))
    options = IngestOptions(layout=layout, chunk_bytes=5000, dtype="float64", shuffle=True)
    ingest(str(bench.folder / "t.csv"), str(bench.places / "shuffled.zarr"), options)

    def parameters(name: str, **given: Any) -> dict[str, float]:
        bench.release(name, epsilon=0.5, **given)
        return dict(bench.header(name)["guarantee"]["parameters"])

    found = parameters("one", rows="shuffled")
    least = amplify_by_shuffling(0.5, N, N**-1.5)
    assert least <= found[SHUFFLED_EPSILON] <= least * (1 + 1e-5) < 0.25
    assert N**-1.5 <= found[SHUFFLED_DELTA] <= N**-1.5 * (1 + 1e-5)
    for name, given in (
        ("two", {}),
        ("three", {"rows": "shuffled", "nonfinite": "withhold"}),
        ("four", {"rows": "shuffled", "release": 'include = ["height"]'}),
    ):
        assert SHUFFLED_EPSILON not in parameters(name, **given), name


@pytest.mark.slow
@pytest.mark.parametrize("law", ["knorm", "privunit"])
def test_run__twice_is_one_charge_and_equal_bytes_and_another_key_charges_again(
    bench: Bench, law: str
) -> None:
    given = {"privacy": "limit = 2.5", "method": f'noise = "{law}"'}
    one = bench.release("one", **given)
    bench.release("two", **given)
    assert digest(bench.folder / "one.zarr") == digest(bench.folder / "two.zarr")
    assert bench.losses() == [(1.0, 1, 0)]
    other_chunks = bench.release("three", rows=600, **given)
    np.testing.assert_array_equal(other_chunks["features"].values, one["features"].values)
    assert bench.losses() == [(1.0, 1, 0)]  # the same content, stored otherwise
    bench.use_keys("second")
    fresh = bench.release("four", **given)
    assert (fresh["features"].values != one["features"].values).mean() > 0.99
    assert bench.losses() == [(2.0, 2, 0)]
    assert bench.watch.now.privacy_loss == 2.0  # the gauge is the account's
    bench.use_keys("third")
    with pytest.raises(GuaranteeError, match=r"another 1 would be above the limit of 2.5"):
        bench.release("five", **given)
    assert not (bench.folder / "five.zarr").exists()
    work = Path(workspace_url(str(bench.folder / "five.zarr")))
    assert not list(work.rglob("features/c/*"))
    assert bench.losses() == [(2.0, 2, 0)]
    assert account_command("")["partitions"][0]["epsilon"] == 2.0


def test_check__a_limit_that_no_repeat_can_keep_is_refused_before_anything(bench: Bench) -> None:
    bench.release("one")
    with pytest.raises(
        GuaranteeError, match=r"spent epsilon 1 in 1 releases; another 1.5 would be"
    ):
        check_stage(read_options(bench.configure("more", epsilon=1.5, privacy="limit = 2.0")))


def test_release__is_on_the_grid_and_says_what_it_promises(bench: Bench) -> None:
    release = bench.release("one", method='noise = "discrete"')
    guarantee = bench.header("one")["guarantee"]
    assert (guarantee["kind"], guarantee["number"], guarantee["delta"]) == ("local_dp", 1.0, 0.0)
    grid = dict(guarantee["parameters"])["grid"]
    steps = release["features"].values / grid
    np.testing.assert_array_equal(steps, np.round(steps))
    assert 0 < bench.watch.now.clipped < N / 5


def test_estimates__of_quartiles_hold_those_of_the_bounded_records(bench: Bench) -> None:
    given = {"method": 'noise = "discrete"\nthreshold = 60.0\ncentre = false', "filter": ""}
    bench.release("one", epsilon=80.0, **given)
    url = f"{bench.folder}/one.zarr"
    records = open_collection(f"{bench.places}/70.zarr").read(FEATURES, 0, N)
    bounded = records * np.minimum(1, 60 / np.linalg.norm(records, axis=1))[:, None]
    found = {one.name: one for one in estimate(url, "quantiles")}
    for j, column in enumerate(bounded.T):
        # Of the population: their own quartiles are off from it by what a sample is off.
        low, high = found[f"{j}, 0.5"].find_limits(0.999)
        assert low < np.median(column) < high
        assert high - low < 60
    with pytest.raises(OptionError, match="quantiles have no such column"):
        estimate(url, "quantiles", by="late")


def test_release__of_signs_says_what_it_promises_and_gives_means(bench: Bench) -> None:
    given = {"method": 'noise = "privunit"\nthreshold = 50.0\ncentre = false', "filter": ""}
    release = bench.release("one", epsilon=8.0, **given)
    guarantee = bench.header("one")["guarantee"]
    assert (guarantee["number"], guarantee["delta"]) == (8.0, 0.0)
    assert dict(guarantee["parameters"])["slack of epsilon"] == 0.0
    assert "PrivUnit" in guarantee["theorem"]
    url = f"{bench.folder}/one.zarr"
    records = open_collection(f"{bench.places}/70.zarr").read(FEATURES, 0, N)
    for found, values in zip(estimate(url), records.T, strict=True):
        assert abs(found.value - values.mean()) < 4.5 * found.error
        assert found.error > values.std() / np.sqrt(N)
    assert len(release["features"]) == N
    with pytest.raises(OptionError, match="how it varies depends on the record"):
        estimate(url, "covariances")
    shutil.copytree(url, f"{bench.folder}/alone.zarr")
    with pytest.raises(OptionError, match=r"There is no .*alone\.model\.zarr") as alone:
        estimate(f"{bench.folder}/alone.zarr")
    assert "Its owner may hand it out" in alone.value.remedy


def test_estimates__of_groups_read_an_included_category(bench: Bench) -> None:
    given = {
        "method": "threshold = 50.0\ncentre = false",
        "release": 'include = ["late", "height"]',
    }
    release = bench.release("one", epsilon=32.0, filter="", **given)
    url, late = f"{bench.folder}/one.zarr", make_standard(N)[1]["late"]
    records = open_collection(f"{bench.places}/70.zarr").read(FEATURES, 0, N)
    found = estimate(url, "differences", by="late")
    raw = records[late == 1].mean(axis=0) - records[late == 0].mean(axis=0)
    assert [one.name for one in found] == [f"{j}: yes - no" for j in range(records.shape[1])]
    for one, value in zip(found, raw, strict=True):
        assert abs(one.value - value) < 4.5 * one.error
    no, yes = estimate(url, "shares")
    assert (no.value, yes.value) == pytest.approx(((late == 0).mean(), (late == 1).mean()))
    for of, column, said in (
        ("differences", {"by": "3"}, "'3' is a feature with noise"),
        ("logistic", {"response": "height"}, "response of two categories 'height' is none"),
        ("quantiles", {}, "Noise of knorm is Laplace's in one coordinate alone"),
        ("modes", {}, "There is no estimate of 'modes'"),
        ("logistic", {"by": "late"}, "logistic have no such column"),
        ("shares", {"by": "height"}, "column of groups 'height' is none of the release"),
        ("shares", {"response": "height"}, "shares have no such column"),
        ("means", {"by": "late"}, "means have no such column"),
    ):
        with pytest.raises(OptionError, match=said):
            estimate(url, of, **column)  # type: ignore[arg-type]
    assert len(release["late"]) == N
    # As many noisy features as these leave the odds open, and that is said; fewer: see numerics.
    with pytest.raises(InputError, match="nothing is determined"):
        estimate(url, "logistic", "late")


def test_estimates__that_cannot_be_made_are_refused_with_the_reason(tmp_path: Path) -> None:
    cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0.09)
    write_model(cleaner, f"{tmp_path}/one.model.zarr")
    with pytest.raises(OptionError, match="means of features keep its bias") as refused:
        estimate(f"{tmp_path}/one.zarr")
    assert "each is off by at most 0.3, the root" in refused.value.remedy


def test_subject__further_records_are_withheld_and_the_promise_is_multiplied(bench: Bench) -> None:
    """`party` has three values: each is a subject of about two hundred records."""
    release = bench.release("one", subject='subject = "party"', privacy="records_per_subject = 4")
    guarantee = bench.header("one")["guarantee"]
    assert (guarantee["number"], guarantee["protects"]) == (4.0, "party")
    kept = release["released"].values == 1
    party = make_standard(N)[1]["party"]
    assert [int((party[kept] == code).sum()) for code in range(3)] == [4, 4, 4]
    assert np.isnan(release["features"].values[~kept]).all()
    assert bench.losses() == [(4.0, 1, 0)]
    with pytest.raises(OptionError, match="records_per_subject is given, but no subject"):
        check_stage(read_options(bench.configure("x", privacy="records_per_subject = 4")))


def test_failure__what_wrote_nothing_is_given_back_and_what_wrote_is_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privpipe.cluster.passes import cleaning_pass

    def fail(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is full", remedy="")

    monkeypatch.setattr(cleaning_pass, "clean_collection", fail)
    with pytest.raises(StoreError):
        bench.release("none")
    assert bench.losses() == [(0.0, 0, 0)]
    monkeypatch.undo()
    bench = Bench(bench.places, bench.folder, monkeypatch)
    write, count = cleaning_pass.write_block, [0]

    def write_some(*arguments: Any) -> Any:
        count[0] += 1
        return fail() if count[0] > 2 else write(*arguments)

    monkeypatch.setattr(cleaning_pass, "write_block", write_some)
    with pytest.raises(StoreError):
        bench.release("some")
    assert bench.losses() == [(1.0, 1, 1)]
    monkeypatch.setattr(cleaning_pass, "write_block", write)
    bench.release("some")  # goes on, with the same draws
    assert bench.losses() == [(1.0, 1, 0)]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"public": "false"}, GuaranteeError, "filter and the mean and the threshold"),
        ({"public": "false", "filter": "", "method": "threshold = 3.0"}, GuaranteeError, "mean"),
        ({"training": "70"}, GuaranteeError, "hold the records of"),
        ({"method": "grid = 0.001"}, OptionError, "The grid is 0.001"),
        ({"method": "grid = 1e-9"}, OptionError, "The grid is 1e-09"),
        ({"method": "grid = 0.5"}, OptionError, "The grid is 0.5"),
        ({"method": 'norm = "l1"'}, OptionError, "law of the l2 norm"),
        ({"epsilon": 0.0}, OptionError, "greater than 0"),
        ({"epsilon": -1.0}, OptionError, "greater than 0"),
        ({"epsilon": "nan"}, OptionError, "finite"),
        ({"epsilon": "inf"}, OptionError, "finite"),
        (
            {"filter": '[method.filter]\nname = "masking"\nn_surrogates = 9\n'},
            OptionError, "not known; use one of: leace",
        ),
        (
            {"filter": '[method.filter]\nname = "privacy_mapping"\nattributes = ["late"]\n'
             'private = ["party"]\ndistortion_budget = 0.1\n'},
            OptionError, "not known; use one of: leace",
        ),
        ({"filter": '[method.filter]\nname = "nothing"\n'}, OptionError, "filter. name is missing"),
        ({"subject": 'subject = "nobody"'}, PrivpipeError, "nobody"),
    ],
)  # fmt: skip
def test_check__refuses_before_anything_is_read(
    bench: Bench, given: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        check_stage(read_options(bench.configure("bad", **given)))
    assert bench.losses() == []
    assert not list_keys()


def test_run__noise_alone_with_a_given_bound_needs_no_public_records(bench: Bench) -> None:
    method = "threshold = 20.0\ncentre = false"
    bench.release("alone", public="false", filter="", method=method)
    assert bench.header("alone")["guarantee"]["kind"] == "local_dp"


def test_run__what_is_learned_from_the_records_themselves_promises_nothing(bench: Bench) -> None:
    bench.release("own", public="false", method="allow_data_bound = true")
    assert bench.header("own")["guarantee"]["kind"] == "none"
    assert bench.losses() == []


ALONE = {"filter": "", "method": "threshold = 20.0\ncentre = false"}
"""Noise alone with a given bound: nothing is learned, and no record need be public."""


def test_impute__from_private_records_is_refused(bench: Bench) -> None:
    """The mean of the collection in the place of what is missing is a mean of private records."""
    given = ALONE | {"public": "false", "nonfinite": "impute"}
    with pytest.raises(GuaranteeError, match="mean of training records") as caught:
        check_stage(read_options(bench.configure("bad", **given)))
    assert caught.value.code == "not-public"
    assert bench.losses() == []


@pytest.mark.parametrize("public", ["true", "false"])
def test_impute__from_public_records_or_with_leave_is_released(bench: Bench, public: str) -> None:
    method = ALONE["method"] + ("" if public == "true" else "\nallow_data_bound = true")
    given = {"filter": "", "method": method, "public": public, "nonfinite": "impute"}
    bench.release("one", **given)
    kind = bench.header("one")["guarantee"]["kind"]
    assert kind == ("local_dp" if public == "true" else "none")


def test_resume__without_its_key_stops(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.release("one")
    for entry in list_keys():
        forget_key(entry.key_id)
    with pytest.raises(StoreError, match="was destroyed"):
        bench.release("two")
    assert not (bench.folder / "two.zarr").exists()


@pytest.mark.parametrize("what", ["a link", "a charge"])
def test_run__a_damaged_account_stops_before_anything(bench: Bench, what: str) -> None:
    bench.release("one")
    found = (bench.folder / "account").glob("*/00000000.json")
    entry = next(path for path in found if (path.parent.name == ".chain") == (what == "a link"))
    entry.write_bytes(b"{}")
    said = f"{entry.parent.name}/00000000.json is missing or was changed"
    with pytest.raises(StoreError, match=said):
        check_stage(read_options(bench.configure("two")))


def test_audit__a_floor_stands_beside_the_promise(bench: Bench) -> None:
    run = check_stage(read_options(bench.configure("one", epsilon=2.0)))
    with hold_workspace(run.release_url):
        run, _ = begin_or_resume(run)
        train_stage(run, Executor())
        found = audit_canaries(run)
    assert found is not None
    assert found["promised"] == 2.0
    assert 0 < found["epsilon_floor"]
    assert found["sure_floor"] <= 2.0
    said = say("canaries", found=found)
    assert "at most 2 for every record" in said
    assert f"the loss is at least {found['epsilon_floor']:.3g}, with a confidence of 99.9%" in said
    assert found["notices_half"] == ("allows twice the loss noticed it" in said)
    missed = say("canaries", found=found | {"notices_half": False})
    assert "did not notice it" in missed
    less = {k: v for k, v in found.items() if k != "notices_half"}
    assert "twice" not in say("canaries", found=less)


def test_account__of_all_releases_together_is_in_the_findings(bench: Bench) -> None:
    """The second release of the same records says what both have cost."""
    key = "limit = 3.0"
    for name, lost in (("one", 1.0), ("two", 2.0)):
        bench.use_keys(name)
        bench.release(name, privacy=key)
        run = check_stage(read_options(bench.configure(name, privacy=key)))
        found = describe_account(run)
        assert found is not None
        assert (found["epsilon"], found["limit"]) == (lost, 3.0)
        assert 0 <= (found["delta"] or 0.0) < 1e-40  # of the discrete noise
    run = check_stage(read_options(bench.configure("three", method="allow_data_bound = true")))
    assert describe_account(run) is None


def test_files__hold_neither_key_nor_noise_nor_a_bounded_record(bench: Bench) -> None:
    """Canaries: secrets as bytes and text, records before and after bounding, the noise alone."""
    release = bench.release("one", privacy="limit = 9.0")
    secrets = [path.read_bytes() for path in (bench.folder / "keys").glob("*.key")]
    assert secrets
    from privpipe.store.models import open_model

    fitted = open_model(str(bench.folder / "one.model.zarr"))
    x, _ = make_standard(N)
    bounded, _ = fitted.bound_features(x)
    noise = release["features"].values - fitted.mechanism.lattice.place(bounded) * fitted.grid
    needles = [row[:2].astype(dtype).tobytes() for row in (*x[:40], *bounded[:40], *noise[:40])
               for dtype in ("<f8", "<f4")]  # fmt: skip
    needles += [f"{value:.6g}".encode() for value in bounded[:20].ravel()]
    for secret in secrets:
        needles += [secret[-32:], secret[-32:].hex().encode(), secret[-16:]]
    held = [p for p in bench.folder.rglob("*") if p.is_file() and "keys" not in p.parts]
    content = b"\n".join(path.read_bytes() for path in held)
    assert len(held) > 5
    assert not [needle for needle in needles if needle in content]


def test_run__discrete_noise_of_a_large_epsilon_releases_no_constant(bench: Bench) -> None:
    """From 64 on the release was clipped to a constant; what is still drawn exactly varies."""
    given = {"method": 'noise = "discrete"'}
    released = bench.release("large", epsilon=50.0, **given)["features"]
    assert np.asarray(released).std(axis=0).min() > 0.1
    with pytest.raises(OptionError, match="its slack"):
        bench.release("larger", epsilon=1000.0, **given)


def test_check__refuses_what_the_run_would_refuse_of_its_filter(bench: Bench) -> None:
    """An epsilon for which one coordinate has noise, and the three of the filter have none."""
    given = {"epsilon": 1.6e-4, "method": 'noise = "discrete"'}
    with pytest.raises(OptionError, match="for 3 coordinates under 'discrete'") as checked:
        forecast_run(check_stage(read_options(bench.configure("small", **given))))
    with pytest.raises(OptionError) as run:
        bench.release("small", **given)
    assert checked.value.message == run.value.message


@pytest.mark.parametrize("epsilon", [35.0, 100.0])
def test_check__refuses_a_delta_that_is_too_large(bench: Bench, epsilon: float) -> None:
    with pytest.raises(OptionError, match="its delta would be"):
        check_stage(read_options(bench.configure("large", epsilon=epsilon)))
