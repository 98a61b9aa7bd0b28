r"""
HAR: motion records by groups, on a cluster
===========================================

Motion of people who carried a phone, 561 measurements per window of time. *Target*: what is
somebody doing? *Confidential*: who is it? Windows of one stretch overlap, so records of one stretch
must stay on one side when the release is judged: that is what groups are for.

The file ``har.npz`` is read from the folder ``PRIVPIPE_PAPER_DATA``.
"""

# %%
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np

folder = Path(tempfile.mkdtemp())
with np.load(Path(os.environ["PRIVPIPE_PAPER_DATA"]) / "har.npz") as har:
    few = np.isin(har["subject"], np.unique(har["subject"])[:6])
    np.savez(
        folder / "motion.npz",
        X=har["X"][few][:, ::8],
        moving=har["activity"][few] <= 3,
        subject=har["subject"][few],
        run=har["run"][few],
    )


def shell(line: str, also_stderr: bool = False) -> None:
    """Run a command in the folder of the tutorial."""
    print(f"$ {line}")
    done = subprocess.run(line.split(), cwd=folder, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    if done.returncode or also_stderr:
        print(re.sub(r"status.*|[\w-]{20,}", "...", done.stderr), end="")
        print(f"exit code {done.returncode}")


def choose(key: str, value: str) -> None:
    """Set a key that is in the configuration as a comment, as you would in an editor."""
    text = (folder / "motion.toml").read_text()
    text, n_found = re.subn(rf"(?m)^#? ?{key} = .*$", f"{key} = {value}", text)
    assert n_found == 1
    (folder / "motion.toml").write_text(text)


# %%
# A collection
# ------------
# ``subject`` and ``run`` are numbers that mean classes; saying so spares a guess.

shell("privpipe ingest motion.npz motion.zarr --categorical subject,run")

# %%
# By groups, on a cluster
# -----------------------
# ``subject`` names the variable whose equal values stay together. ``workers = 2`` starts two worker
# processes; a cluster that runs already would be named by its address.

shell(
    "privpipe init motion.zarr motion.toml --desired moving --confidential subject "
    "--release release.zarr"
)
choose("ridge", "0.001")
choose("subject", '"run"')
choose("holdout", "0.5")
choose("workers", "2")
choose("confidential_advantage_max", "0.6")
choose("exposed_max", "0.6")
choose("must_find", "0.6")
choose("adversaries", '["least_squares", "naive_bayes"]')

# %%
# The run
# -------
# The second line holds the address of the Dask dashboard (here without its secret part): open it
# in a browser while the run works, and see which chunk is where. A certain leak ends an audit
# early; ``--full`` measures the raw records all the same.

shell("privpipe run motion.toml --full", also_stderr=True)

# %%
# Who is it?
# ----------
# How well the strongest adversary distinguishes the six people, from raw and from released records.

findings = json.loads((folder / "release.report" / "audit.json").read_text())
best = findings["adversaries"]["strongest"]["subject"]
for source in ("raw", "released"):
    found = best[source]
    print(f"{source:10s} {found['adversary']:20s} {found['lower']:.2f} to {found['upper']:.2f}")
print(findings["gate"]["state"], "-", findings["gate"]["sentence"])

# %%
# Why the gate stays closed, and what you do
# ------------------------------------------
# The gate is right. The release reveals who it is more surely than even these generous limits
# allow, so the run ended with exit code 6, and nothing was published.

assert findings["gate"]["state"] == "failed"
print("published:", (folder / "release.zarr").exists())

# %%
# Why: null-space cleaning promises how much of the *target* prediction remains, and removes what a
# linear guess of the person would use. How somebody moves and who it is lie in the same
# measurements, and an adversary that is not linear, or reads last digits, finds what is left.
#
# What you do, in this order:
#
# 1. Open ``release.report/report.html``: *what decided* names the adversary and what it read.
# 2. Release less. A filter (``privpipe init motion.zarr --method minimax ...``) releases a few
#    numbers instead of 71; ``privpipe compare`` shows what methods and their options retain and
#    reveal, before anything is published. Then run again.
# 3. Want less: people in groups instead of single people, or a coarser target.
#
# More records, or limits that are weaker still, would not help: the message says so. Who
# decides that this is no harm may approve it with a name and a reason in the release (``privpipe
# approve``).
