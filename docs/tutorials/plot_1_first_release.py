r"""
Digits: from first install to a release
=======================================

Scans of handwritten digits. *Target*: is it a zero? *Confidential*: which digit is it? At the end
there is a release that still answers the first question, a report that says how much of the second
is left, and you have made both from a table of your own.

You need an installed ``privpipe`` and nothing else; it takes a minute or two.
"""

# %%
# A table
# -------
# People have tables. This one has a row per scan: 64 pixels, the answer to the target question, the
# confidential digit, and a number of the scan.

import re
import subprocess
import tempfile
from pathlib import Path

import pandas as pd
from sklearn.datasets import load_digits

folder = Path(tempfile.mkdtemp())
scans = load_digits()
table = pd.DataFrame(scans.data, columns=[f"pixel_{i}" for i in range(64)])
table["zero"] = (scans.target == 0).astype(str)
table["digit"] = scans.target
table["scan_id"] = range(len(table))
table.to_csv(folder / "digits.csv", index=False)
table.iloc[:4, -6:]

# %%
# The commands below are what you would type; this shows what they print.


def shell(line: str) -> None:
    """Run a command in the folder of the tutorial."""
    print(f"$ {line}")
    done = subprocess.run(line.split(), cwd=folder, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode:
        print(done.stderr, f"exit code {done.returncode}")


# %%
# A collection
# ------------
# ``ingest`` reads the table as a stream. Columns named by ``--labels`` become variables: what is
# the target, what is confidential. The key is dropped; all other columns are features.

shell("privpipe ingest digits.csv digits.zarr --labels zero,digit --drop scan_id --dtype float32")

# %%
# A configuration
# ---------------
# ``init`` is not interactive. It writes every key with what it means, most of them as comments.

shell(
    "privpipe init digits.zarr my.toml --desired zero --confidential digit --release release.zarr"
)
print("\n".join((folder / "my.toml").read_text().splitlines()[:34]))

# %%
# Three pixels of these scans are always white, and constant features cannot be distinguished: a
# ridge decides, for which ``init`` wrote a tiny one. Digits other than zero share much with zeros,
# so some of the confidential answer always shows; here we allow a gain of 0.5 and say so in the
# configuration. All adversaries attack: four of them alone would not have found a leak that
# is planted in half of so few records, and the gate would stay closed. All work is done in the
# command's own process.


def choose(key: str, value: str) -> None:
    """Set a key that is in the configuration as a comment, as you would in an editor."""
    text = (folder / "my.toml").read_text()
    text, n_found = re.subn(rf"(?m)^#? ?{key} = .*$", f"{key} = {value}", text)
    assert n_found == 1
    (folder / "my.toml").write_text(text)


choose("ridge", "0.01")
choose("holdout", "0.5")
choose("confidential_advantage_max", "0.5")
choose("exposed_max", "0.2")
choose("must_find", "0.5")
choose("workers", "0")

# %%
# ``check`` says in seconds what would fail later.

shell("privpipe check my.toml")

# %%
# The run
# -------
# Train, clean, audit, gate, publish.

shell("privpipe run my.toml --json")

# %%
# The release
# -----------
# A lazy dataset, whose manifest was checked when it was opened; and what it promises.

import privpipe

release = privpipe.open_release(folder / "release.zarr")
release

# %%
model = privpipe.open_model(folder / "release.model.zarr")
print(model.guarantee)

# %%
# What is left
# ------------
# Four scans above, what was released for them below. The zero is still one; which of the others is
# which can hardly be said.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 4, figsize=(6, 3.2))
for column, i in enumerate((0, 3, 6, 8)):
    axes[0, column].imshow(scans.data[i].reshape(8, 8), cmap="gray_r")
    axes[1, column].imshow(release.features[i].values.reshape(8, 8), cmap="gray_r")
    axes[0, column].set_title(f"a {scans.target[i]}")
for axis in axes.ravel():
    axis.set_axis_off()

# %%
# The report
# ----------
# ``privpipe open release.zarr`` shows it in a browser. Its verdict and reason are in the release,
# too.

import json

findings = json.loads((folder / "release.report" / "audit.json").read_text())
print(findings["adversaries"]["verdict"], "-", findings["gate"]["state"])
print(findings["gate"]["sentence"])
