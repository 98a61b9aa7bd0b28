"""The pages of a release: verdict first, nothing foreign, and no small count for everybody."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.protocols import Column
from privpipe.report.release_page import render_public_page, render_release_page
from privpipe.report.suppression import LEFT_OUT, SMALL, coarsen, coarsen_limit, suppress_counts
from privpipe.report.tables import format_limits
from tests.report.screenshots import find_browser, list_requests
from tests.report.test_page import read

SCHEMA = json.loads(
    resources.files("privpipe.report").joinpath("templates/audit.schema.json").read_text("utf-8")
)
NAME = "<script>alert(1)</script> 名前 $x$"


@pytest.fixture(scope="module")
def findings() -> dict[str, Any]:
    random = np.random.default_rng(0)
    secret = random.integers(0, 2, 400)
    x = random.normal(size=(400, 3)) + 5 * secret[:, None]
    x[:7] = np.nan  # withheld
    report = measure_attacks(
        x,
        secret,
        columns=[Column(NAME, 2)],
        desired=Auxiliary(random.integers(0, 2, (400, 1)).astype(float), (Column("wanted", 2),)),
        options=AttackOptions(adversaries=("logistic", "least_squares")),
    )
    sentence = f"{NAME!r} leaks."
    return {
        "format_version": 1,
        "about": {"method": "null_space", "guarantee": "none", "run": "0123abcd"},
        "basis": "Judged on the released records.",
        "n_records": 397,
        "n_groups": None,
        "privacy": {},
        "desired": {"wanted": {"raw": {"accuracy": 396 / 397, "f1": 0.9}}},
        "confidential": {NAME: {"raw": {"accuracy": 0.913131, "f1": 0.9}}},
        "e_utility": {"budget": 0.01, "mean": 0.002, "largest": 0.01},
        "unseen": {"n_records": 3, "n_released": 400},
        "adversaries": json.loads(report.to_json()),
        "attacks": {"linkage": {"status": "unknown", "reason": "worker"}},
        "gate": {
            "state": "not gated",
            "sentence": sentence,
            "ways_out": "",
            "complaints": [{"code": "leaks", "reason": sentence}],
            "limits": {"enforce": False, "exposed_max": 0.01},
            "approval": None,
        },
    }


TRAINING = {
    "stopped": "progress",
    "columns": ["iteration", "phi", "loss_desired:a", "loss_confidential:b", "inner_gap", "rounds"],
    "history": [[0, -0.1, 0.7, 0.69, 0.0, 2], [1, -0.5, 0.2, 0.68, 3e-7, 5]],
    "tasks": ["desired:a", "confidential:b"],
    "baselines": [0.7, 0.693],
    "bound": 12.0,
}


@pytest.mark.slow
def test_page__shows_how_a_filter_was_learned_and_whether_its_bound_says_anything(
    findings: dict[str, Any],
) -> None:
    for bound, said in ((12.0, "is vacuous"), (0.1, "of the 0.4 that training gained"), (None, "")):
        given = {**findings, "training": {**TRAINING, "bound": bound}}
        jsonschema.validate(given, SCHEMA)
        html = render_release_page(given)
        assert "How it was learned" in html
        assert "1 iterations in 5 rounds" in html
        assert "within 3e-07 nats of the best of their kind" in html
        assert said in html
        assert ("vacuous" in html) == (bound == 12.0)
        assert "How it was learned" not in render_public_page(given)
    assert "How it was learned" not in render_release_page(findings)


def test_audit_schema__fits_what_is_written(findings: dict[str, Any]) -> None:
    jsonschema.validate(findings, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**findings, "gate": {"state": "fine"}}, SCHEMA)


@pytest.mark.parametrize("render", [render_release_page, render_public_page])
def test_page__opens_with_its_verdict_and_loads_nothing(
    findings: dict[str, Any], render: Any
) -> None:
    html = render(findings, version="0.1.0")
    read(html)
    assert html.index('class="banner line leaks"') < html.index("<section>")
    assert "not gated" in html
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "名前" in html
    assert not re.search(r"""(src|href|srcset)=["'](?!data:|#term-)""", html)
    assert "What this does not promise" in html


def test_public_page__tells_no_small_count_and_none_can_be_worked_out(
    findings: dict[str, Any],
) -> None:
    html = render_public_page(findings)
    facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html))
    assert facts["Withheld by the release"] == LEFT_OUT  # 7 of them
    # Given less attacked would be the withheld ones.
    shown = {facts["Records attacked"], facts["Records given"]}
    assert LEFT_OUT in shown
    assert "0123abcd" not in html  # no run, no source
    # 396 of 397 is one that was not: it is rounded away.
    assert "0.997" not in html
    assert "unseen" not in html.lower()


@pytest.mark.parametrize("seed", range(40))
def test_suppress_counts__no_sum_gives_a_small_count_away(seed: int) -> None:
    """Whoever knows the total and all that is shown knows at least ten records' worth less."""
    random = np.random.default_rng(seed)
    counts = {name: int(random.choice([0, 1, 4, 9, 10, 40, 900])) for name in "abcd"}
    shown = suppress_counts(counts, total=("all", sum(counts.values())))
    hidden = [name for name in counts if shown[name] == LEFT_OUT]
    assert {n for n, count in counts.items() if 0 < count < SMALL} <= set(hidden)
    if hidden and shown["all"] != LEFT_OUT:
        assert len(hidden) > 1
        assert sum(counts[name] for name in hidden) >= SMALL


@pytest.mark.parametrize("seed", range(4))
def test_public_page__of_another_small_count_is_the_very_same(
    findings: dict[str, Any], seed: int
) -> None:
    """Whoever reads all of the page cannot tell a small count from any other small one.

    For each there are other records, of which nothing that is not shown need be alike, with the
    same page to the last byte: no sum, share, rounding step or limit says which it was.
    """
    random = np.random.default_rng(seed)
    small = int(random.integers(1, SMALL))
    counts = {"n_records": int(random.choice([240, 399, 400, 401, 2019, 50_000]))}
    counts["n_withheld"], counts["n_seen"] = small, int(random.choice([0, 4, 11, 600]))
    if seed % 2:
        counts["n_withheld"], counts["n_seen"] = counts["n_seen"], small
    name = "n_seen" if seed % 2 else "n_withheld"
    page = _render_counts(findings, counts)
    for other in (1, 5, SMALL - 1):
        moved = small - other
        elsewhere = [{}, *({one: counts[one] + moved} for one in counts.keys() - {name})]
        pages = [_render_counts(findings, counts | {name: other} | more) for more in elsewhere]
        assert page in pages, (counts, name, other)


def _render_counts(findings: dict[str, Any], counts: dict[str, int]) -> str:
    given = {"n_given": sum(counts.values())}
    return render_public_page(
        {**findings, "adversaries": {**findings["adversaries"], **counts, **given}}
    )


def test_public_page__shows_no_figure_of_an_attack(findings: dict[str, Any]) -> None:
    """No estimate, limit, curve or interval of the table stands there, however it is written."""
    html = re.sub(r"<style.*?</style>", "", render_public_page(findings), flags=re.DOTALL)
    shown = {float(number) for number in re.findall(r"(?<![\w.])\d*\.\d+", html)}
    for row in findings["adversaries"]["table"]:
        for key in ("estimate", "lower", "upper", "gain", "gain_lower"):
            value = row[key]
            if value is not None and 0 < value < 1 and abs(value - round(value, 2)) > 1e-9:
                assert not any(abs(value - other) < 1e-6 for other in shown), (key, value)
    assert "<svg" not in html


@pytest.mark.parametrize("n", [25, 276, 4000])
def test_coarsen__leaves_several_counts_possible(n: int) -> None:
    """Every share of a small count, or of all but a small count, looks like that of none."""
    for few in range(SMALL):
        assert coarsen(few / n, n) == "0"
        assert coarsen(1 - few / n, n) == coarsen(1.0, n)


@pytest.mark.parametrize("n", [25, 276, 917, 20_000])
def test_coarsen_limit__is_never_below_the_limit_nor_beyond_what_it_lies_within(n: int) -> None:
    """10,000 of 10,000: .251 was printed .24."""
    random = np.random.default_rng(n)
    for upper, allowed in random.uniform(0, 1, (2500, 2)).tolist():
        for limit in (allowed, upper, round(upper, 2)):
            said = float(coarsen_limit(upper, limit, n))
            assert said >= upper or upper <= limit == pytest.approx(said, rel=1e-5)
            assert upper > limit or said <= limit * (1 + 1e-5)
    few = {coarsen_limit(k / n, 1.0, n) for k in range(1, SMALL)}
    assert len(few) == 1  # of small counts none is told from another


@pytest.mark.slow
@pytest.mark.skipif(find_browser() is None, reason="there is no Chromium")
def test_page__asks_the_net_for_nothing(findings: dict[str, Any], tmp_path: Path) -> None:
    page, bad = tmp_path / "report.html", tmp_path / "bad.html"
    page.write_text(render_release_page(findings))
    assert list_requests(page) == set()
    bad.write_text('<img src="http://127.0.0.1:9/pixel.png">')  # the test can fail
    assert list_requests(bad)


def test_page__of_hundreds_of_variables_shows_the_worst_first_and_stays_small(
    findings: dict[str, Any],
) -> None:
    found = findings["adversaries"]
    names = [f"variable {k}" for k in range(300)]

    def spread(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"target": name} for name in names for row in rows]

    wide = {key: spread(found[key]) for key in ("decisions", "table")}
    wide["decisions"][217]["gain_upper"] = 2.0
    complaints = [{"code": one["verdict"], "reason": one["reason"]} for one in wide["decisions"]]
    gate = findings["gate"] | {"complaints": complaints}
    html = render_release_page({**findings, "adversaries": {**found, **wide}, "gate": gate})
    assert len(html.encode()) < 1.5e6
    assert html.index("variable 217") < min(html.index(f"{name}<") for name in names[:3])
    assert "Of the 30 worst variables; those of all 300 are in audit.json." in html
    assert "270 more are in audit.json." in html


def test_page__shows_what_the_audit_asks(findings: dict[str, Any]) -> None:
    kept = {"estimate": 0.9, "lower": 0.85, "upper": 0.93}
    more = {
        "utility": {
            "wanted": {
                "score": "accuracy",
                "predictor": "logistic",
                "n_test": 100,
                **dict.fromkeys(("raw", "released", "loss"), kept),
            },
            "<b>": {"reason": "singular"},
        },
        "distortion": {
            "n_features": 1,
            "quartiles": [0.5] * 5,
            "features": [{"feature": "<i>ほ", "rms": 1.0, "relative": None}],
        },
        "warnings": ["Drift: <u>."],
        "attacks": {
            "linkage": {
                "status": "measured",
                "report": {"attacks": [{"method": "x", "top_1": kept}]},
            }
        },
    }
    html = render_release_page({**findings, **more})
    read(html)
    for text in (
        format_limits(0.9, 0.85, 0.93),
        "&lt;i&gt;ほ",
        "Drift: &lt;u&gt;.",
        "unknown: singular",
    ):
        assert text in html
    assert html.count("<svg") == 3  # the picture of the first screen, intervals and ROC
    for tag in ("<b>", "<i>", "<u>"):
        assert tag not in html
