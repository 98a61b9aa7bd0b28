"""``python -m tests.mutants``: plant each fault of mutants.toml in a copy and run its tests.

A mutant that no test notices is a promise that nobody tests, and a test that fails without a fault
notices nothing: all of them must first pass. Prints the survivors and the share that was noticed,
by area; ends with 1 where that of any area is below the least share (of a few that are drawn: where
that of all is), with 2 where a test fails.
"""

from __future__ import annotations

import argparse
import compileall
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from py_compile import PycInvalidationMode

from tests.mutants.reading import Mutant, read_mutants

ROOT = Path(__file__).parents[2]
COPIED = ("flows", "privpipe", "tests", "docs", "deploy", "conftest.py", "pyproject.toml")
PATIENCE = 300
"""Seconds; a mutant that makes its tests hang is noticed."""

LOADED = ("numba", "pandas", "pydantic", "pytest", "scipy.optimize", "sklearn.ensemble", "xarray")
"""Imported once: each mutant's tests run in a fork. Nothing of the copy is among them."""

OWN = {"conftest", "flows", "privpipe", "tests"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants, drawn")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--match", default="", help="only promises or modules that hold this")
    parser.add_argument("--without", default="none", help="an area that is left out")
    parser.add_argument("--least", type=float, default=0.95, help="share that must be noticed")
    parser.add_argument("--tested", action="store_true", help="all tests have just passed")
    parser.add_argument("--verbose", action="store_true", help="name those noticed, too")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for name in LOADED:
        import_module(name)
    found = [one for one in read_mutants() if given.match in f"{one.promise} {one.module}"]
    found = [one for one in found if one.promise.partition(":")[0] != given.without]
    drawn = random.Random(given.seed).sample(found, max(1, round(given.share * len(found))))
    print(f"{len(drawn)} of {len(found)} mutants, seed {given.seed}", flush=True)
    noticed, planted = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="privpipe-mutants-") as folder:
        place = _copy(Path(folder))
        tests = " ".join(sorted({one.tests for one in drawn}))
        if not given.tested and not _passes(place, tests):
            print("these tests fail without a fault")
            return 2
        for mutant in drawn:
            area = mutant.promise.partition(":")[0]
            planted[area] += 1
            killed = _is_noticed(place, mutant)
            noticed[area] += killed
            if not killed or given.verbose:
                said = "noticed" if killed else "survives"
                print(f"{said}: {mutant.promise} ({mutant.module}: {mutant.old})", flush=True)
    for area, n in sorted(planted.items()):
        print(f"{area:10s} {noticed[area]} of {n}")
    share = noticed.total() / planted.total()
    print(f"noticed {noticed.total()} of {planted.total()} ({share:.2f})")
    if given.share < 1:  # of three of an area, one survivor would be a third
        return int(share < given.least)
    return int(any(noticed[area] < given.least * n for area, n in planted.items()))


def _copy(folder: Path) -> Path:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "_build"))
        else:
            shutil.copy2(source, target)
    # Compiled once, and anew where the source is not what was compiled, whatever the time says.
    compileall.compile_dir(folder, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def _is_noticed(folder: Path, mutant: Mutant) -> bool:
    module = folder / mutant.module
    text = module.read_text()
    module.write_text(text.replace(mutant.old, mutant.new))
    try:
        return not _passes(folder, mutant.tests, PATIENCE)
    finally:
        module.write_text(text)


def _passes(folder: Path, tests: str, patience: float | None = None) -> bool:
    """Whether tests of the copy pass, in time."""
    process = get_context("fork").Process(target=_run_tests, args=(folder, tests))
    process.start()
    process.join(patience)
    process.kill()
    process.join()
    return process.exitcode == 0


def _run_tests(folder: Path, tests: str) -> None:
    """In a fork: from here on only the copy is imported."""
    import pytest

    for name in [one for one in sys.modules if one.partition(".")[0] in OWN]:
        del sys.modules[name]
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(folder)]
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        os._exit(pytest.main(["-q", "-x", "-n", "0", *dict.fromkeys(tests.split())]))


if __name__ == "__main__":
    sys.exit(main())
