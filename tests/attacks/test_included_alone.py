"""Each included variable by itself: the one that tells more than the wanted answer is named."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.auxiliary import Auxiliary
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.attack_report import AttackReport
from privpipe.protocols import Column

N = 4000
QUICK = AttackOptions(adversaries=("logistic",), decides=("accuracy", "auc"))


def attack(share: float, *, wants: bool = True, seed: int = 0) -> AttackReport:
    """Two included variables of noise, of which the second tells a share of the secrets."""
    random = np.random.default_rng(seed)
    secret, wanted = random.integers(0, 2, (2, N))
    told = np.where(random.random(N) < share, secret, random.integers(0, 2, N))
    included = np.column_stack([random.normal(size=N), told]).astype(float)
    return measure_attacks(
        random.normal(size=(N, 3)),
        secret,
        columns=[Column("secret", 2)],
        auxiliary=Auxiliary(included, (Column("size"), Column("place", 2))),
        desired=Auxiliary(wanted[:, None].astype(float), (Column("wanted", 2),)) if wants else None,
        options=QUICK,
    )


def test_included__the_one_that_tells_is_named_and_the_other_is_not() -> None:
    report = attack(0.5)
    assert {one["included"]: one["tells_more"] for one in report.leakage} == {
        "size": False,
        "place": True,
    }
    assert report.verdict == "leaks"
    alone = [o for o in report.outcomes if o.attack.source == "alone: place"]
    assert max(s.gain_lower for s in alone[0].scores) > 0.2


def test_included__what_only_repeats_the_wanted_answer_tells_no_more() -> None:
    """The wanted answer tells the secret; so does its copy, which is gained by nobody."""
    random = np.random.default_rng(1)
    wanted = random.integers(0, 2, N)
    secret = np.where(random.random(N) < 0.7, wanted, random.integers(0, 2, N))
    answers = wanted[:, None].astype(float)
    report = measure_attacks(
        random.normal(size=(N, 3)),
        secret,
        columns=[Column("secret", 2)],
        auxiliary=Auxiliary(answers, (Column("copy", 2),)),
        desired=Auxiliary(answers, (Column("wanted", 2),)),
        options=QUICK,
    )
    (told,) = report.leakage
    assert not told["tells_more"]
    assert told["gain_upper"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("wants", [True, False])
def test_included__noise_is_seldom_named(wants: bool) -> None:
    """Limits hold together: of 20 audits of noise about one may name a variable by chance."""
    named = [
        any(one["tells_more"] for one in attack(0, wants=wants, seed=s).leakage) for s in range(20)
    ]
    assert sum(named) <= 3


def test_included__a_sentence_says_which_variable_decided() -> None:
    random = np.random.default_rng(2)
    secret = random.integers(0, 2, N)
    report = measure_attacks(
        np.zeros((N, 1)),
        secret,
        columns=[Column("secret", 2)],
        auxiliary=Auxiliary(secret[:, None].astype(float), (Column("copy<script>", 2),)),
        options=AttackOptions(adversaries=("naive_bayes",), decides=("accuracy",)),
    )
    assert report.verdict == "leaks"
    assert {row["source"] for o in report.outcomes for row in o.rows()} >= {"alone: copy<script>"}
