"""Adult: what half of its records promise about the law, the other half confirms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping
from privpipe.errors import PrivacyWarning

NAMES = ("age", "schooling", "marital_status", "sex")


@pytest.mark.slow
@pytest.mark.paper
def test_fit_privacy_mapping__a_fresh_half_of_adult_confirms_the_promise(paper_data: Path) -> None:
    table = pd.read_csv(paper_data / "adult.csv.gz", skipinitialspace=True)
    schooling = pd.cut(table["education_num"], [0, 8, 9, 10, 12, 13, 17]).cat.codes
    table = table.assign(age=table["age"] // 10, schooling=schooling)
    codes = np.column_stack([pd.factorize(table[name])[0] for name in NAMES])
    income = pd.factorize(table["income"], sort=True)[0]
    mixed = np.random.default_rng(0).permutation(len(table))
    run, fresh = mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]
    records = Records(
        np.zeros((len(run), 1)),
        attributes=codes[run],
        confidential=income[run].astype(str),
        n_shards=4,
    )
    options = PrivacyMappingOptions(
        name="privacy_mapping",
        attributes=NAMES,
        private=("income",),
        distortion_budget=0.5,
        most_frequent=100,
    )
    with pytest.warns(PrivacyWarning, match="rare profiles are released as the nearest"):
        mapping = fit_privacy_mapping(records, options)
    said = dict(mapping.guarantee.parameters)
    counts = np.zeros((2, mapping.n_symbols))
    np.add.at(counts, (income[fresh], mapping.find_symbols(codes[fresh])), 1)
    told = measure(np.asarray((mapping.mapping @ (counts / counts.sum()).T).T))
    assert said["plug_in"] < told  # what the fitted counts say is not what is told
    assert told < mapping.guarantee.number < 0.06  # and the promise is not vacuous: raw is .17
    assert "with confidence .95 about the law of these records" in mapping.guarantee.statement


def measure(masses: np.ndarray) -> float:
    product = masses.sum(axis=0) * masses.sum(axis=1, keepdims=True)
    used = masses > 0
    return float((masses[used] * np.log(masses[used] / product[used])).sum())
