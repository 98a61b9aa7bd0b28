"""``make bench``: every benchmark of this folder, as ratios measured in one run.

Each module ``bench_*`` has ``run(small) -> rows``; a row is (name, value, unit, reference,
reference value, ratio). Rows are printed as they come, and as a table that is stored as JSON
beside the load it ran under.
``python -m tests.bench [--small] [--seed N] [NAME ...]`` runs some of them; those that draw
fresh data, splits and starts take the seed.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import pkgutil
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
COLUMNS = ("benchmark", "name", "value", "unit", "reference", "reference value", "ratio")


def find_benchmarks() -> list[str]:
    """Names of the benchmarks, without their prefix."""
    here = str(Path(__file__).parent)
    names = [module.name for module in pkgutil.iter_modules([here])]
    return sorted(name.removeprefix("bench_") for name in names if name.startswith("bench_"))


def run_benchmarks(names: Iterable[str], *, small: bool, seed: int = 0) -> list[tuple[Any, ...]]:
    """Run benchmarks one after the other; rows begin with the benchmark's name."""
    rows: list[tuple[Any, ...]] = []
    for name in names:
        module = importlib.import_module(f"tests.bench.bench_{name}")
        given = {"seed": seed} if "seed" in inspect.signature(module.run).parameters else {}
        for row in module.run(small, **given):
            rows.append((name, *row))
            print(*rows[-1], sep="\t", flush=True)  # whoever is interrupted has these
    return rows


def main() -> None:
    """Run, print, store."""
    from tabulate import tabulate

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *find_benchmarks()])
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn anew")
    parser.add_argument("--out", default="bench-results", help="folder of the JSON")
    arguments = parser.parse_args()
    load = os.getloadavg()
    rows = run_benchmarks(
        arguments.names or find_benchmarks(), small=arguments.small, seed=arguments.seed
    )
    print(tabulate(rows, headers=COLUMNS, floatfmt=".4g"))
    print(f"load before {load[0]:.1f}, after {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores")
    folder = Path(arguments.out)
    folder.mkdir(exist_ok=True)
    content = {
        "load_before": load,
        "load_after": os.getloadavg(),
        "machine": platform.platform(),
        "rows": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
    }
    (folder / "bench.json").write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    for name in THREADS:
        os.environ[name] = "1"
    main()
