"""Odd problems for filters: separable, heavy-tailed, repeated, constant, scaled, with all options.

Every problem is a function of its seed alone, so that figures can be checked one by one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe import Records

KINDS = ("normal", "cauchy", "separable", "repeated", "scaled", "integers", "constant", "rare")


def draw_odd_problem(seed: int) -> tuple[Records, dict[str, Any]]:
    """Records and options of one problem, drawn from the whole of what is allowed."""
    random = np.random.default_rng([38, seed])
    n, width = int(random.choice([40, 100, 300, 1000])), int(random.choice([2, 5, 12, 40]))
    kind, counts = str(random.choice(KINDS)), random.choice([2, 3, 6], size=2)
    x = random.normal(size=(n, width))
    mixes = [random.normal(size=(width, count)) / np.sqrt(width) for count in counts]
    noise = 0.0 if kind == "separable" else float(random.choice([0.1, 0.5, 2.0]))
    scores = [x @ mix + noise * random.normal(size=(n, mix.shape[1])) for mix in mixes]
    labels = [np.argmax(score, axis=1) for score in scores]
    if kind == "cauchy":
        x = x * np.abs(random.standard_cauchy(size=(n, 1)))
    elif kind == "repeated":
        chosen = random.integers(0, max(3, n // 20), n)
        x = x[chosen]
    elif kind == "scaled":
        x = x * 10.0 ** random.uniform(-5, 5, size=width)
    elif kind == "integers":
        x = np.round(x)
    elif kind == "constant":
        x[:, width // 2] = 3.0
    elif kind == "rare":
        labels[1] = np.where(random.random(n) < 0.9, 0, labels[1])
    for classes in labels:
        classes[:2] = 0, 1  # at least two
    options: dict[str, Any] = {
        "max_iterations": int(random.choice([10, 30, 100])),
        "regularisation": float(random.choice([1e-9, 1e-6, 1e-4])),
        "tradeoff": float(random.choice([0.1, 1.0, 10.0, 100.0])),
        "n_filtered": random.choice([None, 1, 2, width]),
        "seed": seed,
    }
    if random.random() < 0.3:
        options["adversary"] = ("logistic", "kernel")
    if options["n_filtered"] is None and counts[0] - 1 > width:
        options["n_filtered"] = 1
    desired, confidential = (classes.astype(str) for classes in labels)
    return Records(x, desired=desired, confidential=confidential), options
