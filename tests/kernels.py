"""The numerical tests under other kernels: `python -m tests.kernels`, or `--all` for every one.

OpenBLAS and NumPy choose their inner loops by the processor, so that every machine sums in an order
of its own. Here the choice is made for them: what passes under all of these decides nothing by
the last bit of a sum. Kernels that this processor cannot run are left out and named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import threadpoolctl
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__  # type: ignore[attr-defined]

QUICKLY = (
    "tests/numerics/null_space",
    "tests/numerics/test_tsqr.py",
    "tests/numerics/minimax/test_spectra.py",
    "tests/numerics/test_rounding.py",
    "tests/sanitizers/null_space",
    "tests/sanitizers/test_null_exact.py",
    "tests/sanitizers/test_bound.py",
    "tests/attacks/statistics",
)
"""What a matrix product decides: predictors, ranks, orders, ties, bounds of rounding.

The rest of what computes is left to `--all`."""

NUMERICAL = ("tests/numerics", "tests/sanitizers", "tests/attacks")
EVERYTHING = (*NUMERICAL, "tests/papers", "tests/records", "privpipe/numerics", "privpipe/attacks")
CHOSEN = ("OPENBLAS_L2_SIZE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES")
"""Variables of the environment that would choose beside us."""


@dataclass(frozen=True)
class Setting:
    """One way to compute.

    Parameters
    ----------
    core
        OPENBLAS_CORETYPE. Builds for many processors hold few kernels: Zen and SapphireRapids
        may load those of Haswell and SkylakeX.
    needs
        Feature without which the processor cannot run it.
    n_threads
        Of OpenBLAS.
    without
        Instruction sets NumPy does without, as far as it dispatches to them.
    """

    core: str
    needs: str
    n_threads: int
    without: tuple[str, ...] = ()

    def environment(self) -> dict[str, str]:
        """That of the process, with this choice alone."""
        own = {key: value for key, value in os.environ.items() if key not in CHOSEN}
        off = [name for name in self.without if __cpu_features__.get(name)]
        threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(self.n_threads))
        return {
            **own,
            **threads,
            "OPENBLAS_CORETYPE": self.core,
            **({"NPY_DISABLE_CPU_FEATURES": " ".join(off)} if off else {}),
        }

    def __str__(self) -> str:
        off = f", NumPy without {' '.join(self.without)}" if self.without else ""
        return f"{self.core}, {self.n_threads} thread(s){off}"


WIDEST = tuple(name for name in __cpu_dispatch__ if name != "X86_V3")
QUICK = (
    Setting("Haswell", "AVX2", 2, tuple(__cpu_dispatch__)),
    Setting("SkylakeX", "AVX512_SKX", 1),
)
ALL = (
    *(
        Setting(core, needs, n_threads)
        for core, needs in (
            ("Haswell", "AVX2"),
            ("Zen", "AVX2"),
            ("SkylakeX", "AVX512_SKX"),
            ("SapphireRapids", "AVX512_SKX"),
        )
        for n_threads in (1, 2)
    ),
    Setting("SkylakeX", "AVX512_SKX", 1, WIDEST),
    Setting("Haswell", "AVX2", 1, tuple(__cpu_dispatch__)),
    Setting("Nehalem", "SSE42", 1, tuple(__cpu_dispatch__)),
)

SHOW = """
import json, numpy, scipy.linalg, threadpoolctl
print(sorted({pool["architecture"] for pool in threadpoolctl.threadpool_info()
              if pool["internal_api"] == "openblas"}))
"""


def run_under(setting: Setting, arguments: list[str]) -> bool:
    """Run the tests so; whether all passed."""
    environment = setting.environment()
    loaded = subprocess.run(
        [sys.executable, "-c", SHOW], env=environment, capture_output=True, text=True, check=True
    )
    print(f"== {setting}: OpenBLAS loads {loaded.stdout.strip()}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    """Run under two settings, or with --all under eleven; further arguments go to pytest."""
    thorough = "--all" in arguments
    rest = [argument for argument in arguments if argument != "--all"]
    if not any(not argument.startswith("-") and os.path.exists(argument) for argument in rest):
        # The quick ones leave out what starts processes: no sum of theirs is another.
        rest += [*EVERYTHING] if thorough else [*QUICKLY]
    if not any(pool["internal_api"] == "openblas" for pool in threadpoolctl.threadpool_info()):
        print(f"NumPy {np.__version__} does not compute with OpenBLAS here: nothing to choose.")
        return 0
    failed = []
    for setting in ALL if thorough else QUICK:
        if not __cpu_features__.get(setting.needs):
            print(f"== {setting}: left out, this processor has no {setting.needs}")
        elif not run_under(setting, rest):
            failed.append(str(setting))
    for name in failed:
        print(f"FAILED under {name}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
