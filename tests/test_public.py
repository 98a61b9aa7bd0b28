"""The outside of the package: names, lazy imports, errors, the command's help."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import privpipe
from privpipe import errors

HEAVY = ("numpy", "zarr", "dask", "distributed", "prefect", "xarray", "pandas", "sklearn")


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    return done.stdout


def test_import__loads_nothing_heavy() -> None:
    loaded = run_python(f"import privpipe, sys; print([n for n in {HEAVY} if n in sys.modules])")
    assert loaded.strip() == "[]"


def test_help__loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['privpipe', '--help']\n"
        "from privpipe.command import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', [n for n in {HEAVY} if n in sys.modules])"
    )
    output = run_python(code)
    assert "HEAVY []" in output
    for command in ("run", "ingest", "inspect", "demo"):
        assert command in output


FIRST_USE = """
import sys
import privpipe

slow = ("sklearn", "dask", "distributed", "xarray", "prefect", "scipy.stats")
for name in privpipe.__all__:
    getattr(privpipe, name)
    if found := [one for one in slow if one in sys.modules]:
        sys.exit(f"{name} loads {found}")
x = __import__("numpy").random.default_rng(0).normal(size=(60, 2))
privpipe.measure_linkage(x, x[:, :1])
privpipe.measure_reconstruction(x, x[:, :1])
privpipe.ClusterPricing(None, place="inline")
if found := [one for one in ("sklearn", "dask", "distributed") if one in sys.modules]:
    sys.exit(f"a call loads {found}")
"""
"""Each of them takes longer to load than the first use of a public name may take."""


@pytest.mark.slow
def test_public_names__load_nothing_slow_when_first_used() -> None:
    run_python(FIRST_USE)


WATCH_IMPORT = """
import os, socket, sys, threading
home, seen = os.environ["HOME"], []

def watch(event, args):
    paths = [os.fsdecode(one) for one in args[:1] if isinstance(one, (str, bytes))]
    if event.startswith(("socket.", "urllib.")) or any(one.startswith(home) for one in paths):
        seen.append(event)

sys.addaudithook(watch)
import privpipe
tasks = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
for name in privpipe.__all__:
    getattr(privpipe, name)
print(seen, tasks, threading.active_count())
socket.socket().close()
open(os.path.join(home, "x"), "w").close()
print(seen)
"""
"""Imports all there is, then does what it must not do, to see that it would have been noticed."""


def test_import__touches_no_network_no_home_and_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    imported, afterwards = run_python(WATCH_IMPORT).splitlines()
    assert imported == "[] 1 1"
    assert afterwards == "['socket.__new__', 'open']"


@pytest.mark.parametrize("name", privpipe.__all__)
def test_public_names__are_there_and_documented(name: str) -> None:
    found = getattr(privpipe, name)
    assert name == "__version__" or found.__doc__


def test_unknown_name__is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = privpipe.no_such_name


def test_errors__carry_exit_codes_by_class() -> None:
    codes = {
        errors.OptionError: 2,
        errors.InputError: 3,
        errors.RankError: 3,
        errors.StoreError: 4,
        errors.FormatError: 4,
        errors.ClusterError: 5,
        errors.MemoryBudgetError: 5,
        errors.GateError: 6,
        errors.GuaranteeError: 6,
        errors.ConvergenceError: 7,
    }
    assert {kind: kind.exit_code for kind in codes} == codes
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.InputError, ValueError)


def test_errors__travel_whole_between_processes() -> None:
    error = errors.RankError("Two features coincide.", remedy="Drop one.", code="twins")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is errors.RankError
    assert (back.message, back.remedy, back.code) == (error.message, error.remedy, error.code)
