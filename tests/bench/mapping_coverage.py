"""How often what a mapping promises holds, over the twelve laws of `tests.laws_of_records`.

Each draw is fitted once and judged at every level, since the fit does not know the level.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from privpipe import fit_privacy_mapping
from privpipe.errors import PrivacyWarning
from privpipe.sanitizers.mapping.solving import assurance
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from tests.laws_of_records import RecordLaw, make_laws

Row = tuple[Any, ...]
LEVELS, KEPT = (0.95, 0.5), ("information", "distortion")
OFF = 0.02
"""How far above its level a bound may hold where there is something to bound."""


def judge_draws(law: RecordLaw, n: int, n_draws: int, seed: int) -> np.ndarray:
    """Whether information and distortion are at most what is promised, by draw and level."""
    rng, kept = np.random.default_rng(seed), np.zeros((n_draws, len(LEVELS), 2), bool)
    options, assure = law.make_options(gap=1e-2), assurance.assure_mapping
    for draw in range(n_draws):
        judged: list[SparseMapping] = []

        def judge(found: SparseMapping, known: Any, judged: Any = judged, **given: Any) -> Any:
            judged += [assure(found, known, **given | {"confidence": one}) for one in LEVELS]
            return judged[0]

        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            patch.setattr(assurance, "assure_mapping", judge)
            fit_privacy_mapping(law.draw(n, rng), options)  # type: ignore[arg-type]
        told, spent = law.tell(judged[0])
        for k, one in enumerate(judged):
            most = dict(one.guarantee.parameters).get("distortion_at_most", np.inf)
            kept[draw, k] = told <= (one.guarantee.number or 0.0) + 1e-9, spent <= most + 1e-9
    return kept


def list_coverage(seed: int, n: int, n_draws: int, match: str = "") -> Iterator[Row]:
    """Of each law and level the share of draws whose promise holds; then of all laws."""
    found = {}
    for number, (name, law) in enumerate(make_laws().items()):
        if match in name:
            found[name] = judge_draws(law, n, n_draws, 1_000 * seed + number)
            for k, level in enumerate(LEVELS):
                for what, kept in zip(
                    ("information", "distortion"), found[name][:, k].T, strict=True
                ):
                    share = float(kept.mean())
                    title = f"coverage of {what}, {name}, {n:,} records, {n_draws} draws"
                    yield title, share, "of draws", "at least", level, level / max(share, 1e-9)
    if found:
        of_all = np.concatenate(list(found.values())).mean(axis=0)
        for level, (share, _) in zip(LEVELS, of_all, strict=True):
            most = min(level + OFF, 1.0)
            title = f"coverage of information, all laws, level {level:g}"
            yield title, float(share), "of draws", "at most", most, float(share) / most
