# %% [markdown]
# # privpipe from Python
# From a folder of Parquet files to released records without a cluster: ingest, fit, look at
# what an attacker gains, apply lazily. Each cell can be run on its own in a notebook.

# %%
from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

import privpipe
from privpipe.sklearn import RecordSanitizer

# %% [markdown]
# ## Records
# A wanted score and a confidential group, both linear in twelve measurements, in two files.

# %%
folder = Path("measurements")
folder.mkdir()
rng = np.random.default_rng(0)
directions = np.linalg.qr(rng.normal(size=(12, 2)))[0]
for day in ("monday", "tuesday"):
    x = rng.normal(size=(1500, 12))
    frame = pd.DataFrame(x, columns=[f"m{j}" for j in range(12)])
    frame["score"] = x @ directions[:, 0] + 0.1 * rng.normal(size=1500)
    frame["group"] = np.where(x @ directions[:, 1] > 0, "north", "south")
    frame["record_id"] = np.arange(1500)
    frame.to_parquet(folder / f"{day}.parquet")

# %% [markdown]
# ## Ingest
# Streaming; each file stays a partition of its own. Identifiers are left out.

# %%
layout = privpipe.SourceLayout(labels=("score", "group"), drop=("record_id",))
options = privpipe.IngestOptions(layout=layout, min_category_count=10)
schema = privpipe.ingest(str(folder), "measurements.zarr", options)
print(schema.n_records, "records of", [part.name for part in schema.partitions])

# %% [markdown]
# ## Fit
# A collection answers the questions of a fit chunk by chunk; the fitted map is small and frozen.

# %%
records = privpipe.open_collection("measurements.zarr", desired=["score"], confidential=["group"])
cleaner = privpipe.fit_null_space_cleaner(records, utility_budget=0.01)
print(cleaner.guarantee.kind, cleaner.guarantee.number, cleaner.guarantee.unit)
privpipe.write_model(cleaner, "cleaner.zarr")

# %% [markdown]
# ## Apply, lazily
# Nothing is read before it is asked for. The stored map gives the same records.

# %%
raw = xr.open_zarr("measurements.zarr", consolidated=False)
released = privpipe.apply_dataset(privpipe.open_model("cleaner.zarr"), raw)
print(released.features)

# %% [markdown]
# ## Does it work?
# The wanted prediction keeps its error; the attacker is retrained on released records.

# %%
x, score = raw.features.values, raw.score.values
group, clean = raw.group.values, released.features.values
loss = (cleaner.predict(clean) - cleaner.predict(x)) ** 2
half = len(x) // 2


def attack(features: np.ndarray) -> float:
    """Accuracy of an attacker trained on the first half, judged on the second."""
    model = LogisticRegression().fit(features[:half], group[:half])
    return float(model.score(features[half:], group[half:]))


attack_raw, attack_released = attack(x), attack(clean)
print(f"attack on raw records {attack_raw:.2f}, on released ones {attack_released:.2f}")

# %% [markdown]
# ## In scikit-learn
# The same map as a step of a pipeline.

# %%
sanitizer = RecordSanitizer(options={"utility_budget": 0.01})
model = make_pipeline(sanitizer, Ridge()).fit(x[:half], score[:half])
wanted = model.score(x[half:], score[half:])
print(f"wanted prediction on released records: R^2 {wanted:.2f}")
