"""Information of Adult's attributes about income, as SPPM's evaluation counts it.

Figures to expect, bits, training part, age in decades: from the note that accompanies the data.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.attacks.threats.information import measure_information

EXPECTED = {
    "age": 0.085,
    "education": 0.094,
    "marital_status": 0.157,
    "occupation": 0.093,
    "race": 0.008,
    "sex": 0.037,
    "native_country": 0.009,
    "joint": 0.416,
}


@pytest.mark.paper
def test_measure_information__equals_the_known_figures_of_adult(paper_data: Path) -> None:
    table = pd.read_csv(paper_data / "adult.csv.gz", skipinitialspace=True)
    table = table[table["split"] == "train"].assign(age=lambda t: t["age"] // 10)
    names = [name for name in EXPECTED if name != "joint"]
    codes = np.column_stack([pd.factorize(table[name])[0] for name in names])
    report = measure_information(codes, pd.factorize(table["income"])[0], attributes=names)
    bits = {row.released: row.plug_in / np.log(2) for row in report.rows}
    assert bits == pytest.approx(EXPECTED, abs=6e-4)
    joint = next(row for row in report.rows if row.released == "joint")
    assert joint.n_symbols == 8264
    # A profile for every four records: the plug-in overstates, as shuffled labels show, and
    # what predicts the income of others is far less.
    assert joint.shuffled > 0.1
    assert joint.held_out < joint.corrected < joint.plug_in
    assert joint.lower / np.log(2) > EXPECTED["marital_status"]
