"""Whole audits: what leaks is caught, what does not is safe, what fails is unknown."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.adversaries.problem import Fitted
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats import inference
from privpipe.attacks.threats.inference import measure_attacks, plan_attacks, run_attack
from privpipe.attacks.threats.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.attacks.threats.verdicts.outcomes import Attack
from privpipe.cluster.passes.attack_tasks import plan_attack_bytes
from privpipe.errors import GuessWarning, InputError, OptionError
from privpipe.protocols import Column

FAST = AttackOptions(
    adversaries=("least_squares", "logistic", "naive_bayes"),
    max_advantage=0.2,
    decides=("accuracy", "auc"),
)


class Face:
    """Records whose secret shifts the mean along one direction; a projection removes it."""

    def __init__(self, n: int = 1500, p: int = 8, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.secret = random.integers(0, 2, n)
        self.direction = random.normal(size=p)
        self.direction /= np.linalg.norm(self.direction)
        self.x = random.normal(size=(n, p)) + 2.5 * np.outer(self.secret - 0.5, self.direction)

    def release(self, sign: float = -1.0) -> np.ndarray:
        return self.x + sign * np.outer(self.x @ self.direction, self.direction)


@pytest.fixture(scope="module")
def leaky() -> AttackReport:
    """Of a release of 300 records as they are."""
    face = Face(300)
    return measure_attacks(face.x, face.secret, options=FAST)


@pytest.fixture(scope="module")
def erased() -> AttackReport:
    """Of a release that reveals nothing, of enough records to show it."""
    face = Face(6000)
    return measure_attacks(face.release(), face.secret, raw=face.x, options=FAST)


def test_measure_attacks__passes_an_eraser_and_sees_the_secret_in_the_raw_records(
    erased: AttackReport,
) -> None:
    decision = erased.decide()[0]
    assert erased.verdict == decision.verdict == "safe"
    assert decision.control_advantage > 0.7
    assert abs(decision.advantage) < 0.1
    assert np.isnan(decision.noise_advantage)


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("flaw", ["identity", "leaked_label", "wrong_sign", "tiny_label"])
def test_measure_attacks__catches_a_flawed_release_by_every_adversary(adversary, flaw) -> None:
    face = Face()
    released = {
        "identity": face.x,
        "wrong_sign": face.release(+1.0),
        "leaked_label": np.column_stack([face.release(), face.secret]),
        "tiny_label": np.column_stack([face.release(), 1e-9 * face.secret + 1.0]),
    }[flaw]
    options = replace(FAST, adversaries=(adversary,))
    report = measure_attacks(released, face.secret, options=options)
    assert report.verdict == "leaks"
    assert report.decide()[0].advantage > (0.9 if "label" in flaw else 0.6)


def test_measure_attacks__catches_a_leak_of_a_rare_class_that_accuracy_hides() -> None:
    random = np.random.default_rng(1)
    secret = (np.arange(4000) % 40 == 0).astype(int)
    released = random.normal(size=(4000, 3))
    released[:, 0] += 1.5 * secret
    report = measure_attacks(released, secret, options=FAST)
    table = report.table.set_index(["adversary", "score"])
    assert table.loc[("logistic", "accuracy"), "advantage"] < 0.2
    assert report.verdict == "leaks"
    assert report.decide()[0].score == "auc"


def test_measure_attacks__attacks_low_rank_releases_in_their_coordinates() -> None:
    random = np.random.default_rng(2)
    hidden = random.normal(size=(500, 3))
    released = hidden @ random.normal(size=(3, 60))
    number = hidden[:, 0] + 0.1 * random.normal(size=500)
    options = replace(FAST, adversaries=("least_squares", "linear_svm"))
    report = measure_attacks(released.astype(np.float32), number, options=options)
    assert set(report.table.query("source == 'released'")["n_coordinates"]) == {3}
    assert set(report.table["n_features"]) == {60}
    r2 = report.table.query("score == 'r2' and source == 'released'").set_index("adversary")[
        "estimate"
    ]
    assert (r2 > 0.98).all()


def test_measure_attacks__judges_by_group_when_records_share_a_subject() -> None:
    random = np.random.default_rng(3)
    groups = np.repeat(np.arange(60), 20)
    secret = (np.arange(60) % 2)[groups]
    # Each subject has a place of its own: records of one subject tell of one another, and
    # nothing of the secret of subjects not seen.
    released = random.normal(size=(60, 4))[groups] + 0.05 * random.normal(size=(1200, 4))
    options = replace(FAST, adversaries=("nearest_neighbours",))
    leaky = measure_attacks(released, secret, options=options).decide()[0]
    honest = measure_attacks(released, secret, groups=groups, options=options)
    assert leaky.advantage > 0.9
    assert honest.verdict == "unproven"
    kinds = {"grouped_wilson", "grouped_influence", "grouped_ranks"}
    assert set(honest.table["interval"]) == kinds


def test_measure_attacks__handles_several_columns_with_missing_values() -> None:
    face = Face(900)
    age = 40 + 5 * face.x[:, 0]
    age[::7] = np.nan
    codes = face.secret.astype(float)
    codes[::5] = -1
    columns = (Column("disease", 2), Column("age"))
    report = measure_attacks(face.x, np.column_stack([codes, age]), columns=columns, options=FAST)
    table = report.table
    assert len(report.outcomes) == 6
    assert set(table.query("target == 'age'")["adversary"]) == {"least_squares", "bit_reader"}
    assert set(table.query("target == 'disease'")["kind"]) == {"classes"}
    used = table.query("target == 'disease'")[["n_train", "n_tune", "n_test"]].sum(axis=1)
    # Everybody judges, and trains or tunes in the other four folds.
    assert all(1295 <= one <= 1297 for one in used)
    rmse = table.query("score == 'rmse' and source == 'released'")["estimate"].item()
    assert rmse < 0.2


def test_measure_attacks__leaves_out_seen_records_and_attacks_withheld_ones() -> None:
    face = Face(600)
    released = face.x.copy()
    released[:30] = np.nan
    seen = np.arange(600) >= 500
    report = measure_attacks(released, face.secret, seen=seen, options=FAST)
    assert (report.n_given, report.n_withheld, report.n_seen) == (600, 30, 100)
    assert report.n_records == 500
    papers = replace(FAST, seen_records="train")
    report = measure_attacks(face.x, face.secret, seen=seen, options=papers)
    assert set(report.table["n_test"]) == {500}
    # Those that the sanitiser has seen, and the other folds of all others.
    assert set(report.table["n_train"] + report.table["n_tune"]) == {500}


@pytest.mark.parametrize("n", [10_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_measure_attacks__finds_a_class_in_which_rows_are_withheld(n: int) -> None:
    """One of twenty records, all of one class: an accuracy of .525 at most."""
    random = np.random.default_rng(12)
    secret = random.integers(0, 2, n)
    released = random.normal(size=(n, 3))
    released[np.flatnonzero(secret)[: n // 20]] = np.nan
    options = AttackOptions(adversaries=("logistic",))
    report = measure_attacks(released, secret, options=options)
    decision = report.decide()[0]
    assert decision.verdict == "leaks"
    assert decision.score in ("tpr_at_0.001", "tpr_at_0.01")
    assert report.n_withheld == n // 20
    accuracy = report.table.query("score == 'accuracy' and adversary == 'logistic'")
    assert accuracy["advantage_lower"].item() < options.max_advantage


@pytest.mark.slow
def test_measure_attacks__finds_a_few_records_that_stand_open() -> None:
    """2 % of 30,000 records are known for certain; averages are within what is allowed."""
    random = np.random.default_rng(13)
    secret = random.integers(0, 2, 30_000)
    released = random.normal(size=(30_000, 3))
    known = random.random(30_000) < 0.02
    released[known, 0] = 100 * (2 * secret[known] - 1)
    options = AttackOptions(adversaries=("logistic",))
    decision = measure_attacks(released, secret, options=options).decide()[0]
    assert decision.verdict == "leaks"
    averages = replace(options, decides=("accuracy", "auc"))
    assert measure_attacks(released, secret, options=averages).verdict == "safe"


@pytest.mark.parametrize(
    ("place", "dtype"),
    [
        ("mantissa", np.float32),
        ("grid", np.float64),
        ("zeros", np.float32),
        pytest.param("mantissa", np.float64, marks=pytest.mark.slow),
        pytest.param("grid", np.float32, marks=pytest.mark.slow),
        pytest.param("zeros", np.float64, marks=pytest.mark.slow),
    ],
)
def test_measure_attacks__finds_a_label_in_low_order_bits(dtype, place) -> None:
    random = np.random.default_rng(14)
    secret = random.integers(0, 2, 2000)
    released = random.normal(size=(2000, 3)).astype(dtype)
    if place == "mantissa":
        word = np.uint32 if dtype == np.float32 else np.uint64
        bits = released.view(word)
        bits[:, 1] = bits[:, 1] & ~word(1) | secret.astype(word)
    elif place == "grid":
        released[:, 1] = (2 * np.round(released[:, 1] * 512) + secret) / 1024
    else:
        released[secret == 1, 1] = np.round(released[secret == 1, 1] * 4096) / 4096
    report = measure_attacks(released, secret, options=FAST)
    assert report.decide()[0].strongest == "bit_reader"
    assert report.verdict == "leaks"
    seen = report.table.query("source == 'released' and score == 'auc'")
    assert (seen["advantage"] < 0.5).all()


@pytest.mark.slow
def test_measure_attacks__reads_what_stands_beside_the_features() -> None:
    random = np.random.default_rng(15)
    secret = random.integers(0, 2, 2000)
    released = random.normal(size=(2000, 3))
    partition = np.sort(random.integers(0, 40, 2000))
    copied = Auxiliary(secret[:, None].astype(float), (Column("copy", 2),))
    cases = {
        "included": (secret, copied),
        "order": (np.sort(secret), Auxiliary(position=np.arange(2000))),
        "alternating order": (np.arange(2000) % 2, Auxiliary(position=np.arange(2000))),
        "partition": (random.integers(0, 2, 40)[partition], Auxiliary(partition=partition)),
    }
    for hidden, auxiliary in cases.values():
        assert (
            measure_attacks(released, hidden, auxiliary=auxiliary, options=FAST).verdict == "leaks"
        )
        assert measure_attacks(released, hidden, options=FAST).verdict != "leaks"


def test_measure_attacks__counts_an_area_below_one_half_only_where_tuning_turned_it(
    monkeypatch,
) -> None:
    """An adversary that is always wrong is read the other way; one that errs by chance is not."""
    face = Face(1200)
    wrong = Fitted(lambda x: np.column_stack([x[:, 0], -x[:, 0]]), "")
    broken = {"logistic": replace(ADVERSARIES["logistic"], fit=lambda problem: wrong)}
    monkeypatch.setattr(inference, "ADVERSARIES", broken)
    options = replace(FAST, adversaries=("logistic",))
    strong = np.column_stack([3.0 * face.secret + face.x[:, 0], face.x])
    table = measure_attacks(strong, face.secret, options=options).table
    turned = table.query("adversary == 'logistic' and score == 'auc'")
    assert turned["estimate"].item() > 0.9
    assert Score("auc", Interval(0.2, 0.1, 0.3, 0.95, "bootstrap"), 0.5).advantage_upper < 0


def test_measure_attacks__names_a_variable_it_cannot_judge_and_judges_the_others() -> None:
    face = Face(600)
    rare = (np.arange(600) < 3).astype(int)
    refusing = replace(FAST, rare_classes="refuse")
    report = measure_attacks(face.x, np.column_stack([face.secret, rare]), options=refusing)
    judged, left_out = report.decide()
    assert judged.verdict == report.verdict == "leaks"
    assert left_out.target == "confidential_1"
    assert left_out.verdict == "unproven"
    assert "fewer than 10 records" in left_out.reason
    harmless = np.random.default_rng(0).normal(size=(600, 3))
    report = measure_attacks(
        harmless, np.column_stack([face.secret, rare]), options=replace(refusing, max_advantage=1.0)
    )
    assert [one.verdict for one in report.decide()] == ["safe", "unproven"]
    assert report.verdict == "unproven"


def test_measure_attacks__bounds_the_sample_by_records_and_bytes() -> None:
    face = Face(1500, p=100)
    few = measure_attacks(face.x, face.secret, options=replace(FAST, max_records=200))
    assert few.n_records == 200
    assert replace(FAST, max_bytes=1 << 20).plan_sample(5000, 1000) == 262
    assert replace(FAST, max_test=20).plan_sample(10, 1) == 10


def test_plan_attack_bytes__grows_with_what_is_trained_on_up_to_a_bound() -> None:
    def plan(n: int) -> int:
        x = np.random.default_rng(0).normal(size=(n, 50)).astype(np.float32)
        return plan_attack_bytes(prepare_evidence(x, np.arange(n) % 2))

    fixed = 256 << 20
    assert plan(1000) - fixed == 1000 * 55 * 24  # and five sizes; twice, and joined
    assert plan(2000) - fixed == 2000 * 55 * 24


def test_measure_attacks__gives_the_same_table_again_but_for_the_seconds(
    leaky: AttackReport,
) -> None:
    face = Face(300)
    again = measure_attacks(face.x, face.secret, options=FAST)
    first, second = (one.table.drop(columns="seconds") for one in (leaky, again))
    assert first.equals(second)


@pytest.mark.slow
def test_measure_attacks__shows_nothing_of_a_useless_release() -> None:
    """Errors of areas over folds are 1.42 times what intervals say, where nothing is learned.

    So "more than nothing" needs a margin; folds that learn from one another also err below a half.
    """
    held = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        options = replace(FAST, seed=seed)
        report = measure_attacks(
            random.normal(size=(300, 3)), random.integers(0, 2, 300), options=options
        )
        areas = [s for o in report.outcomes for s in o.scores if s.name == "auc"]
        held += not any(one.is_more for one in areas)
    assert held >= 36  # nominal at least .95; fewer than 36 of 40 has probability .003


def test_run_attack__turns_any_failure_into_unknown_without_its_text(monkeypatch) -> None:
    face = Face(300)
    evidence = prepare_evidence(face.release(), face.secret, options=FAST)

    def fail(problem: object) -> object:
        raise ValueError("the value ochre of record 7 is unseen")

    broken = dict(ADVERSARIES) | {"logistic": replace(ADVERSARIES["logistic"], fit=fail)}
    monkeypatch.setattr(inference, "ADVERSARIES", broken)
    attack = Attack("confidential", "classes", "released", "logistic")
    outcome = run_attack(evidence, attack, FAST)
    assert (outcome.status, outcome.reason, outcome.scores) == ("unknown", "ValueError", ())
    report = measure_attacks(face.release(), face.secret, options=replace(FAST, max_advantage=1.0))
    decision = report.decide()[0]
    assert (decision.verdict, decision.n_unknown) == ("unknown", 1)
    assert "1 of 4 attacks failed" in decision.reason
    assert report.verdict == "unknown"
    assert "ochre" not in report.to_json()  # no digits: figures hold any of them
    leaky = measure_attacks(face.x, face.secret, options=FAST)
    assert leaky.verdict == "leaks"


def test_run_attack__that_cannot_decide_is_unknown(monkeypatch) -> None:
    face = Face(300)
    nan = Fitted(lambda x: np.full((len(x), 2), np.nan), "")
    broken = {"logistic": replace(ADVERSARIES["logistic"], fit=lambda problem: nan)}
    monkeypatch.setattr(inference, "ADVERSARIES", broken)
    options = replace(FAST, adversaries=("logistic",))
    report = measure_attacks(face.x, face.secret, options=options)
    assert report.outcomes[0].status == "unknown"
    assert "not finite" in report.outcomes[0].reason
    # What another adversary proved stands.
    assert report.verdict == "leaks"
    erased = measure_attacks(face.release(), face.secret, options=options)
    assert erased.verdict == "unknown"


def test_attack_report__is_unproven_where_the_sample_is_too_small_to_show_safety() -> None:
    random = np.random.default_rng(8)
    options = replace(FAST, max_advantage=0.1)
    report = measure_attacks(
        random.normal(size=(120, 2)), random.integers(0, 2, 120), options=options
    )
    decision = report.decide()[0]
    assert decision.verdict == "unproven"
    assert decision.advantage_lower <= 0.1 < decision.advantage_upper
    assert decision.n_needed > 120
    assert f"about {decision.n_needed:,.0f} held-out records" in decision.reason


def test_verdict__is_safe_of_safe_releases_only(erased: AttackReport, leaky: AttackReport) -> None:
    assert erased.verdict == "safe"
    assert leaky.verdict == "leaks"
    (decision,) = leaky.decide()
    assert "'confidential' leaks" in decision.reason
    assert "allowed 0.2" in decision.reason
    assert AttackReport((), FAST, 0, 0).verdict == "unknown"
    plan = (Attack("a", "classes", "released", "logistic"),)
    failed = summarise_outcomes([], plan, FAST, n_records=1, n_given=1)
    assert failed.verdict == "unknown"
    assert "1 of 1 attacks failed" in failed.decide()[0].reason


def test_strongest__is_found_by_score_and_source(erased: AttackReport) -> None:
    report = erased
    rows = report.table.query("source == 'raw' and score == 'accuracy'").set_index("adversary")
    name, score = report.strongest("confidential", "accuracy", "raw")
    assert rows["upper"].idxmax() == name
    assert score.interval.upper == rows["upper"].max()
    with pytest.raises(InputError, match="No attack on noise measured accuracy"):
        report.strongest("confidential", "accuracy", "noise")


def test_attack_report__of_nothing_is_unknown() -> None:
    assert AttackReport((), FAST, 0, 0).verdict == "unknown"
    plan = (Attack("a", "classes", "released", "logistic"),)
    report = summarise_outcomes([], plan, FAST, n_records=1, n_given=1)
    assert report.verdict == "unknown"
    assert "not run" in report.table["reason"].item()


def test_attack_report__has_the_stated_schema_and_json(leaky: AttackReport) -> None:
    report = leaky
    assert " ".join(report.table.columns) == (
        "target kind source adversary score estimate lower upper level interval baseline advantage "
        "advantage_lower advantage_upper gain gain_lower gain_upper n_train n_tune n_test "
        "n_features n_coordinates seconds status reason settings"
    )
    assert " ".join(report.decisions.columns) == (
        "target verdict reason source strongest score estimate lower upper baseline advantage "
        "advantage_lower advantage_upper gain gain_lower gain_upper allowed control_advantage "
        "noise_advantage wanted_advantage n_compared level n_unknown n_labels gain_slope n_needed "
        "needed"
    )
    for frame in (report.table, report.decisions):
        kinds = {name: str(dtype) for name, dtype in frame.dtypes.items()}
        assert kinds["target"] == "str"
        assert kinds["gain_upper"] == "float64"
    document = json.loads(report.to_json())
    assert document["verdict"] == "leaks"
    assert len(document["table"]) == len(report.table) == 4 * 6
    assert document["decisions"][0]["noise_advantage"] is None
    levels = report.table["level"]
    np.testing.assert_allclose(levels, 1 - 0.05 / 8)
    assert document["decisions"][0]["n_compared"] == 8
    assert document["reason"] == document["decisions"][0]["reason"]


def test_plan_attacks__names_each_attack_once() -> None:
    face = Face(200)
    evidence = prepare_evidence(
        face.release(), np.column_stack([face.secret, face.secret]), raw=face.x, noise=face.x
    )
    plan = plan_attacks(evidence, AttackOptions())
    names = AttackOptions().adversaries
    # Raw records and noise are compared with: two adversaries each; and one reads bits.
    assert len({attack.name for attack in plan}) == len(plan) == 2 * (len(names) + 2 + 2 + 1)


ONE = ("logistic",)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"confidential": np.zeros(200, int)}, "single class in 200"),
        ({"confidential": np.zeros(200)}, "does not vary"),
        ({"confidential": (np.arange(200) < 3).astype(int)}, "1 of the 2 classes|single class"),
        ({"confidential": np.zeros(199, int)}, "released has 200 rows"),
        ({"confidential": np.full(200, np.inf)}, "200 infinite"),
        ({"raw": np.zeros((3, 3))}, "raw has shape"),
        ({"raw": np.full((200, 3), np.nan)}, "raw holds 600 values"),
        ({"groups": np.zeros(9)}, "groups has shape"),
        ({"seen": np.ones(200, bool)}, "0 records can be attacked"),
        ({"columns": (Column("a"), Column("b"))}, "2 columns are named"),
        ({"columns": (Column("a"), Column("a")), "confidential": np.ones((200, 2))}, "distinct"),
        ({"confidential": np.ones((200, 0))}, "Give one column"),
        ({"desired": np.ones(200)}, r"desired is a ndarray.*Give Auxiliary\(included"),
        ({"auxiliary": [[0.5]] * 200}, "auxiliary is a list"),
        ({"features": 3}, "features is a int"),
        (
            {"confidential": np.arange(200) / 7, "options": AttackOptions(adversaries=ONE)},
            r"the adversaries logistic predicts numbers, as 'confidential' has\. Add one of: lea",
        ),
    ],
)
def test_prepare_evidence__refuses_without_telling_a_label(change, match) -> None:
    given = {
        "released": np.random.default_rng(0).normal(size=(200, 3)),
        "confidential": np.arange(200) % 2,
    }
    with pytest.raises((InputError, OptionError), match=match):
        prepare_evidence(**(given | change))


def test_prepare_evidence__merges_rare_classes_where_asked() -> None:
    codes = np.concatenate([np.repeat([0, 1], 90), np.repeat(np.arange(2, 12), 2)])
    options = AttackOptions(rare_classes="merge")
    with pytest.warns(GuessWarning, match="12 different values, which are read as classes"):
        evidence = prepare_evidence(
            np.random.default_rng(0).normal(size=(200, 2)), codes, options=options
        )
    assert evidence.columns[0].n_categories == 3
    assert sorted(np.bincount(evidence.truth[:, 0].astype(int))) == [20, 90, 90]


def test_prepare_evidence__merges_one_rare_class_with_the_smallest_others() -> None:
    """One label of three records among 174 must not void the audit."""
    sizes = np.concatenate([np.full(173, 12), [3]])
    codes = np.repeat(np.arange(174), sizes)
    options = AttackOptions(rare_classes="merge")
    x = np.random.default_rng(0).normal(size=(len(codes), 2))
    evidence = prepare_evidence(x, codes, columns=[Column("name", 174)], options=options)
    assert evidence.columns[0].n_categories == 173
    assert sorted(np.bincount(evidence.truth[:, 0].astype(int))) == [12] * 172 + [15]


def test_prepare_evidence__takes_strings_and_booleans_as_classes() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    for values in (np.arange(60) % 2 == 0, np.where(np.arange(60) % 2, "yes", "no")):
        assert prepare_evidence(x, values).columns[0].n_categories == 2
    assert prepare_evidence(x, x[:, 0]).columns[0].n_categories is None


def test_measure_attacks__reads_categories_as_such() -> None:
    """A secret that is whether a code is odd: no order of the codes tells, indicators do."""
    random = np.random.default_rng(9)
    codes = random.integers(-1, 6, (800, 2))
    options = replace(FAST, adversaries=("logistic",))
    secret = codes[:, 0] % 2
    features = (Column("kind", 6), Column("place", 6))
    seen = measure_attacks(codes, secret, features=features, options=options).decide()[0]
    blind = measure_attacks(codes, secret, options=options)
    assert seen.advantage > 0.99
    assert blind.strongest("confidential", "auc")[1].advantage < 0.6
    assert blind.decide()[0].strongest == "bit_reader"  # whether a code is odd is a bit
    with pytest.raises(InputError, match="1 features are named"):
        measure_attacks(codes, secret, features=features[:1], options=options)
    with pytest.raises(InputError, match=r"\d+ records of released have no code of 'kind' below 3"):
        measure_attacks(codes, secret, features=(Column("kind", 3), features[1]))


def test_attack_options__refuse_what_they_do_not_know() -> None:
    for wrong in ({"adversaries": ("oracle",)}, {"adversaries": ()}, {"level": 1.0}, {"nosuch": 1}):
        with pytest.raises(
            ValueError, match=r"no such adversary|Input should be|at least one|[Uu]nexpected"
        ):
            AttackOptions(**wrong)
