"""Privacy as the paper measures it, against plain formulae on whole arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flows.reproduce.laplace import LaplaceMechanism
from flows.reproduce.null_space_privacy import measure_null_space_privacy
from privpipe.errors import InputError, OptionError
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner, fit_targeted_cleaner
from privpipe.sanitizers.null_space.leace import fit_leace_eraser


def make_data(n=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)) + np.array([0, 2, 0, 0, -1, 0, 0, 5])
    desired = np.column_stack([x[:, 0] + x[:, 1], x[:, 2] - x[:, 1]]) + 0.1 * rng.normal(
        size=(n, 2)
    )
    secret = np.column_stack([x @ np.arange(8), x[:, 1] - x[:, 6]]) + 0.5 * rng.normal(size=(n, 2))
    return x, desired, secret


def split(x, desired, secret, n_shards=3):
    cut = 2 * len(x) // 3
    return tuple(
        Records(x[rows], desired=desired[rows], confidential=secret[rows], n_shards=n_shards)
        for rows in (slice(None, cut), slice(cut, None))
    )


def fit_plain(x, y):
    rows = np.column_stack([x, np.ones(len(x))])
    return np.linalg.lstsq(rows, y, rcond=1e-12)[0]


def measure_plainly(cleaner, x, secret, augmented=False):
    """The paper's figures on whole arrays: direct and with the attack."""
    cut = 2 * len(x) // 3
    a = fit_plain(x[:cut], secret[:cut])
    released = cleaner.apply(x)
    wide = released if augmented else np.column_stack([released, np.ones(len(x))])
    raw = np.column_stack([x, np.ones(len(x))]) @ a
    mean = np.append(x[:cut].mean(axis=0), 1) @ a
    attack = np.column_stack([released, np.ones(len(x))]) @ fit_plain(released[:cut], secret[:cut])
    found = []
    for guess in (wide @ a, attack):
        changed = ((guess - raw) ** 2)[cut:].mean()
        # Records that are released as the mean are predicted as it: no ally of the last bit.
        private = (np.abs(guess - secret) - np.abs(mean - secret) > 1e-10)[cut:].mean()
        found.append((changed, private))
    return found


@pytest.mark.parametrize("intercept", ["separate", "augmented"])
@pytest.mark.parametrize("fit", [fit_null_space_cleaner, fit_targeted_cleaner])
def test_measure__is_the_paper_s_definition(fit, intercept):
    x, desired, secret = make_data()
    train, test = split(x, desired, secret)
    cleaner = fit(train, utility_budget=0.05, intercept=intercept)
    found = measure_null_space_privacy(cleaner, train, test)
    expected = measure_plainly(cleaner, x, secret, augmented=intercept == "augmented")
    for view, (changed, private) in zip((found.direct, found.attacked), expected, strict=True):
        assert view.e_privacy == pytest.approx(changed, rel=1e-6)
        assert view.complete_privacy == pytest.approx(private, abs=1e-9)
        assert set(view.e_privacy_by_target) == {"confidential_0", "confidential_1"}
        assert np.mean(list(view.e_privacy_by_target.values())) == pytest.approx(view.e_privacy)
    assert found.n_records == 200
    assert found.n_above_budget == 0
    assert 0 < found.e_utility <= found.largest_e_utility <= 0.05


def test_measure__counts_no_tie_as_complete_privacy_whatever_the_last_bits():
    """Records released as the mean: the adversary does as well as from the mean, not worse."""
    x, desired, secret = make_data()
    for turn in range(6):  # another order of the features is another order of the sums
        order = np.random.default_rng(turn).permutation(8)
        train, test = split(x[:, order], desired, secret)
        cleaner = fit_null_space_cleaner(train, utility_budget=1e4)  # all of it is spent
        found = measure_null_space_privacy(cleaner, train, test)
        assert found.direct.complete_privacy == 0
        assert found.attacked.complete_privacy == 0


def test_measure__does_not_depend_on_shards():
    data = make_data()
    figures = []
    for n_shards in (1, 5):
        train, test = split(*data, n_shards=n_shards)
        cleaner = fit_null_space_cleaner(train, utility_budget=0.05)
        figures.append(measure_null_space_privacy(cleaner, train, test).attacked)
    assert figures[0].e_privacy == pytest.approx(figures[1].e_privacy, rel=1e-9)
    assert figures[0].complete_privacy == figures[1].complete_privacy


def test_laplace__at_equal_utility_hides_less_than_cleaning():
    train, test = split(*make_data(3000))
    cleaner = fit_null_space_cleaner(train, utility_budget=0.05)
    noise = LaplaceMechanism.from_predictor(cleaner.predictor, utility_budget=0.05)
    cleaned = measure_null_space_privacy(cleaner, train, test)
    noisy = measure_null_space_privacy(noise, train, test, noise_key=bytes(32))
    assert noisy.e_utility == pytest.approx(0.05, rel=0.15)
    assert noisy.direct.e_privacy < 0.1 * cleaned.attacked.e_privacy
    assert noisy.attacked.complete_privacy < cleaned.attacked.complete_privacy
    with pytest.raises(OptionError, match="stream"):
        measure_null_space_privacy(noise, train, test)


def test_leace__on_the_same_axes_erases_linearly_at_a_cost_of_utility():
    train, test = split(*make_data(3000))
    cleaner = fit_null_space_cleaner(train, utility_budget=0.05)
    found = measure_null_space_privacy(
        fit_leace_eraser(train), train, test, desired_predictor=cleaner.predictor
    )
    # What is left to the adversary is the mean: complete privacy is then a matter of ties.
    cleaned = measure_null_space_privacy(cleaner, train, test)
    raw = np.concatenate([shard.confidential for shard in test.shards()]).var(axis=0).mean()
    assert found.attacked.e_privacy == pytest.approx(raw, rel=0.1)
    assert found.attacked.e_privacy > cleaned.attacked.e_privacy
    assert found.e_utility > 0.05
    assert found.utility_budget is None


def test_measure__leaves_withheld_records_out():
    x, desired, secret = make_data()
    x[-1] *= 1e30
    train, test = split(x, desired, secret)
    cleaner = fit_null_space_cleaner(train, utility_budget=1e-12)
    found = measure_null_space_privacy(replace(cleaner, on_unrepresentable="withhold"), train, test)
    assert (found.n_records, found.n_withheld) == (199, 1)


def test_measure__needs_confidential_variables():
    x, desired, _ = make_data()
    records = Records(x, desired=desired)
    cleaner = fit_null_space_cleaner(records, utility_budget=0.1)
    with pytest.raises(InputError, match="no confidential variable"):
        measure_null_space_privacy(cleaner, records, records)
