r"""
Adult: profiles, the gate, and a curve
======================================

Census records of 1994. *Confidential*: is the income above 50,000? What is released are categorical
profiles (education, marital status, sex), some of them changed at random, so that they reveal
little about the income and few profiles are changed.

The file ``adult.csv.gz`` is read from the folder ``PRIVPIPE_PAPER_DATA``.
"""

# %%
import gzip
import json
import os
import re
import subprocess
import tempfile
from itertools import islice
from pathlib import Path

folder = Path(tempfile.mkdtemp())
source = Path(os.environ["PRIVPIPE_PAPER_DATA"]) / "adult.csv.gz"
with gzip.open(source, "rt") as raw:
    (folder / "adult.csv").write_text("".join(islice(raw, 8_001)))


def shell(line: str) -> None:
    """Run a command in the folder of the tutorial."""
    print(f"$ {line}")
    done = subprocess.run(line.split(), cwd=folder, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode:
        print(done.stderr, f"exit code {done.returncode}")


def choose(key: str, value: str) -> None:
    """Set a key that is in the configuration as a comment, as you would in an editor."""
    text = (folder / "adult.toml").read_text()
    text, n_found = re.subn(rf"(?m)^#? ?{key} = .*$", f"{key} = {value}", text)
    assert n_found == 1
    (folder / "adult.toml").write_text(text)


# %%
# A collection of profiles
# ------------------------
# Columns of text become variables. Categories of fewer than 50 people are pooled: a profile that
# one person has says who it is.

shell(
    "privpipe ingest adult.csv adult.zarr --features age --min-category-count 50 "
    "--labels income,sex,education,marital_status"
)

# %%
# A configuration
# ---------------
# Where only something to hide is named, ``init`` suggests the mapping, and a first budget: three
# profiles in ten may be changed in one attribute.

shell("privpipe init adult.zarr adult.toml --confidential income --release release.zarr")
choose("workers", "0")
choose("holdout", "0.5")
choose("confidential_advantage_max", "0.5")
choose("exposed_max", "0.2")
choose("must_find", "0.5")
choose("adversaries", '["least_squares", "naive_bayes"]')
shell("privpipe check adult.toml")

# %%
# The run, and the gate
# ---------------------
# The gate publishes only what was shown to be within the limits above. Where it refuses, the exit
# code is 6, nothing is published, and the message says what would help.

shell("privpipe run adult.toml --json")

# %%
# What the adversaries found is in the audit, published or not.

findings = json.loads((folder / "release.report" / "audit.json").read_text())
print(findings["gate"]["state"], "-", findings["gate"]["sentence"])

# %%
# A curve
# -------
# How much must be changed for how little to be revealed? The mapping of education alone, for a list
# of budgets; each point is optimal within a certified gap.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import privpipe

table = pd.read_csv(folder / "adult.csv")
counts = pd.crosstab(table["income"], table["education"])
joint = (counts / counts.to_numpy().sum()).to_numpy()
codes = np.arange(joint.shape[1])[:, None]
budgets = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5]
curve = [privpipe.solve_privacy_mapping(joint, codes, distortion_budget=one) for one in budgets]

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot(budgets, [mapping.guarantee.number for mapping in curve], "o-")
axes.set(xlabel="share of people whose education is changed", ylabel="information (nats)")
axes.set_ylim(0, None)
plt.show()
