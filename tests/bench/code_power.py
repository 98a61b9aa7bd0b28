"""Whether audits find codes that tell a secret and no value, and how often they see one in noise.

``python -m tests.bench.code_power [audits] [advantage] [code ...]`` prints, per code, the share of
audits of 30,000 records with 20 features in which a reader has, by a deciding score, an advantage
whose lower limit is above nothing, at the level of a whole audit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats.inference import plan_attacks, run_attack
from privpipe.protocols import FloatArray, IntArray
from tests.attacks.adversaries.planted_codes import AROUND, IN_VALUES, Plant, draw, nothing

N_RECORDS, WIDTH = 30_000, 20

READERS = ("bits", "surroundings")


def odd_product(
    n_factors: int, random: np.random.Generator, x: FloatArray, code: IntArray
) -> FloatArray:
    """Signs of features that no two audits share."""
    chosen = random.choice(x.shape[1], n_factors, replace=False)
    x[:, chosen[0]] *= np.sign(x[:, chosen].prod(axis=1)) * (2 * code - 1)
    return x


def list_codes() -> dict[str, Plant]:
    """Codes by name, and noise."""
    products = {f"product_of_{n}_of_20": partial(odd_product, n) for n in (3, 4, 5)}
    return IN_VALUES | products | AROUND | {"nothing": nothing}


def find(plant: Plant, seed: int, advantage: float) -> tuple[bool, float]:
    """Whether a reader finds the code, and its best estimate of an advantage by accuracy."""
    planted = draw(plant, seed, N_RECORDS, WIDTH, advantage)
    options = AttackOptions(adversaries=("least_squares",), seed=seed)
    evidence = prepare_evidence(
        planted.x, planted.truth, auxiliary=planted.auxiliary, options=options
    )
    attacks = [one for one in plan_attacks(evidence, options) if one.source in READERS]
    scores = [score for one in attacks for score in run_attack(evidence, one, options).scores]
    deciding = [score for score in scores if score.name in options.deciding("classes")]
    found = any(score.gain_lower > 0 for score in deciding)
    return found, max(score.advantage for score in scores if score.name == "accuracy")


def main(arguments: Sequence[str]) -> None:
    n_audits = int(arguments[0]) if arguments else 20
    advantage = float(arguments[1]) if len(arguments) > 1 else 0.1
    for name, plant in list_codes().items():
        if len(arguments) > 2 and name not in arguments[2:]:
            continue
        audits = [find(plant, seed, advantage) for seed in range(n_audits)]
        share = sum(found for found, _ in audits) / n_audits
        sizes = np.array([size for _, size in audits])
        print(
            f"{name:22} found {share:.2f} of {n_audits} at {advantage:g}, advantage "
            f"{np.median(sizes):.3f} ({sizes.min():.3f} to {sizes.max():.3f})",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
