"""Partitions that come one after the other: fitted on with, as from scratch."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from privpipe import GrowingRecords, MinimaxOptions, Records, fit_minimax_filter
from privpipe.errors import InputError
from privpipe.pipeline.runs.run_options import METHODS
from privpipe.sanitizers.minimax.linear_filter import LinearFilter
from tests.sanitizers.labelled_data import draw_labelled, join_parts
from tests.sanitizers.minimax.small_adversaries import make_small

CLOSED: dict[str, dict[str, Any]] = {
    "minimax_least_squares": {},
    "privacy_lds": {},
    "pca": {"n_filtered": 3},
    "leace": {},
    "null_space": {"utility_budget": 0.1, "ridge": 1e-6},
    "null_space_targeted": {"utility_budget": 0.1, "ridge": 1e-6},
}


def draw_parts(sizes: tuple[int, ...]) -> tuple[list[Records], Records]:
    """Partitions, and all their records at once; classes as codes that every partition has."""
    x, target, private = draw_labelled(sum(sizes))
    person = np.arange(len(x)) // 6
    private = person % 3

    def take(rows: slice) -> Records:
        roles = {"desired": target[rows].astype(int), "confidential": private[rows]}
        return Records(x[rows], **roles, groups=person[rows], categorical=tuple(roles))

    ends = np.cumsum((0, *sizes))
    return [take(slice(a, b)) for a, b in pairwise(ends)], take(slice(None))


@pytest.mark.parametrize("name", CLOSED)
def test_closed_form__is_as_from_scratch_and_of_one_pass_reads_the_new_partition_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, whole = draw_parts((600, 120, 300))
    method = METHODS[name]
    options = method.options(name=name, **CLOSED[name])
    grown = join_parts(parts[:2])
    method.fit(grown, options)
    grown.append(parts[2])
    read: list[Records] = []
    reduce = Records.reduce

    def count(self: Records, summarise: Any) -> Any:
        read.append(self)
        return reduce(self, summarise)

    monkeypatch.setattr(Records, "reduce", count)
    ours = method.fit(grown, options)
    # Null-space methods centre first, LEACE looks at dependent features: their second question is
    # of another centre.
    expected = parts if name.startswith(("null_space", "leace")) else parts[2:]
    assert {id(one) for one in read} == {id(one) for one in expected}
    (shard,) = parts[2].shards()
    x = shard.features
    theirs = method.fit(whole, options)
    np.testing.assert_allclose(ours.apply(x), theirs.apply(x), atol=1e-6)


@pytest.mark.parametrize("adversary", [("logistic",), ("logistic", "kernel", "group")])
def test_iterated__goes_on_to_the_phi_of_a_fit_from_scratch(
    adversary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(monkeypatch, RESAMPLE_EVERY=5)
    parts, whole = draw_parts((1200, 300))
    options = MinimaxOptions(adversary=adversary, max_iterations=40, group_size=3)
    before = fit_minimax_filter(parts[0], options)
    short = MinimaxOptions(adversary=adversary, max_iterations=10, group_size=3)
    ours = fit_minimax_filter(join_parts(parts), short, earlier=before)
    theirs = fit_minimax_filter(whole, options)
    phi, scratch = ours.history[-1, 1], theirs.history[-1, 1]
    assert phi <= scratch + 1e-3 * abs(scratch)
    # It begins near there: its first filter is the earlier one, and all adversaries are drawn.
    assert abs(ours.history[0, 1] - scratch) <= 0.05 * abs(scratch)
    at = ours.history_columns.index("rounds")
    # Of logistic adversaries alone the fit from scratch takes twenty rounds, too few to save many.
    share = 0.8 if len(adversary) > 1 else 1.0
    assert ours.history[-1, at] < share * theirs.history[-1, at]


def test_earlier__of_other_features_is_refused() -> None:
    parts, _ = draw_parts((300, 60))
    other = LinearFilter("rand", np.zeros((4, 1)), np.zeros(1))
    with pytest.raises(InputError, match="weights of shape"):
        fit_minimax_filter(join_parts(parts), earlier=other)


def test_partition__of_other_classes_is_refused() -> None:
    (first, _), _ = draw_parts((300, 60))
    x = np.ones((4, 9))
    with pytest.raises(InputError, match="other variables, categories"):
        GrowingRecords(first).append(Records(x, desired=[0.1, 0.2, 0.3, 0.4], confidential=x[:, 0]))


def test_numbers_of_classes_are_known_by_value() -> None:
    x = np.eye(4)
    grown = GrowingRecords(Records(x, desired=[3, 5, 3, 5], categorical="desired"))
    grown.append(Records(x, desired=[5, 3, 3, 3], categorical="desired"))
    with pytest.raises(InputError, match="other variables, categories"):
        grown.append(Records(x, desired=[7, 5, 5, 7], categorical="desired"))


def test_people_are_known_by_value() -> None:
    parts = (["ada", "bob", "bob"], np.array(["bob", None, "eve"], object))
    first, second = (next(Records(np.eye(3), groups=one).shards()).groups for one in parts)
    assert second[0] == first[1] == first[2]
    assert len({*first.tolist(), *second.tolist()}) == 4
