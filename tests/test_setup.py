"""The first minute on a bare machine: every Python found, no uv, `make`, and something that works.

So does what is installed from the wheel by pip alone.

Downloads what constraints.txt names, so it has a target of its own: `make test-setup`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("PRIVPIPE_TEST_SETUP"), reason="downloads packages: make test-setup"
    ),
]

REPOSITORY = Path(__file__).parents[1]

VERSIONS = ("3.11", "3.12", "3.13")

NEEDED = ("Makefile", "constraints.txt", "constraints-uv.txt", "pyproject.toml", "README.md")
"""Files; and LICENSE with the two packages."""

TOOLS = ("make", "sh", "touch", "rm")
"""All that is on PATH, beside nothing."""

TINY = """
import sys, numpy as np, privpipe
assert sys.prefix != sys.base_prefix
x = np.random.default_rng(0).normal(size=(60, 4))
records = privpipe.Records(x, desired=x[:, :1] - x[:, 1:2], confidential=x[:, 2:3])
cleaner = privpipe.fit_null_space_cleaner(records, utility_budget=0.01)
lost = ((cleaner.apply(x) - x) @ cleaner.predictor) ** 2
assert lost.sum(axis=1).max() <= 0.01
from privpipe.command import main
sys.argv = ["privpipe", "schema"]
main()
"""


def find_python(version: str) -> str | None:
    """An interpreter of that version: on PATH, or where pyenv puts them."""
    found = [shutil.which(f"python{version}")]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found += [str(path) for path in sorted(root.glob(f"versions/{version}.*/bin/python"))]
    ask = "import sys, venv; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for name in filter(None, found):  # a shim may stand for nothing
        run = subprocess.run([name, "-c", ask], capture_output=True, text=True, check=False)
        if run.returncode == 0 and run.stdout.split(maxsplit=1)[0] == version:
            return run.stdout.split(maxsplit=1)[1].strip()
    return None


def copy_repository(folder: Path) -> None:
    """What a clone holds of what the set-up needs."""
    for name in (*NEEDED, "LICENSE"):
        shutil.copy(REPOSITORY / name, folder / name)
    for package in ("privpipe", "privpipe_flows"):
        shutil.copytree(
            REPOSITORY / package, folder / package, ignore=shutil.ignore_patterns("__pycache__")
        )


def make_bare(folder: Path) -> dict[str, str]:
    """An environment whose PATH holds a handful of tools and no uv.

    Nor is uv told where the machine keeps its certificates: that is the Makefile's to find.
    """
    tools = folder / "tools"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    kept = ("HOME", "LANG", "TMPDIR", "UV_CACHE_DIR", "XDG_CACHE_HOME")
    passed = {
        key: value
        for key, value in os.environ.items()
        if key in kept or key.lower().endswith("_proxy") or key.startswith(("PIP_", "UV_"))
    }
    return {**passed, "PATH": str(tools)}


@dataclass
class SetUp:
    """A clone that is being set up with one Python."""

    folder: Path
    bare: dict[str, str]
    making: subprocess.Popen[str]


def begin(version: str, folder: Path) -> SetUp | None:
    """Let make begin; None where that Python is not here."""
    python = find_python(version)
    if python is None:
        return None
    clone = folder / "clone"
    clone.mkdir()
    copy_repository(clone)
    bare = make_bare(folder)
    command = [str(shutil.which("make")), ".venv/.ready", f"PYTHON={python}"]
    pipe = subprocess.PIPE
    making = subprocess.Popen(
        command, cwd=clone, env=bare, stdout=pipe, stderr=subprocess.STDOUT, text=True
    )
    return SetUp(folder, bare, making)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SetUp | None]]:
    """Every Python found, side by side: much of it is waiting."""
    found = {version: begin(version, tmp_path_factory.mktemp("bare")) for version in VERSIONS}
    yield found
    for setup in filter(None, found.values()):
        if setup.making.stdout and not setup.making.stdout.closed:  # nobody waited for it
            setup.making.kill()
            setup.making.communicate()


@pytest.mark.skipif(
    os.environ.get("PRIVPIPE_TEST_SETUP") != "wheel", reason="minutes of pip: make test-wheel"
)
@pytest.mark.parametrize("version", VERSIONS)
def test_wheel__works_by_pip_alone_beside_a_folder_flows(version: str, tmp_path: Path) -> None:
    """Installed from another folder, where the user's own `flows` comes first on the path."""
    python, uv = find_python(version), REPOSITORY / ".venv/bin/uv"
    if python is None or not uv.exists():
        pytest.skip(f"no Python {version}, or no uv to build with, here")
    trusts = os.environ.get("PRIVPIPE_TEST_TRUST", "").split()  # as the Makefile's own uv
    options = ["--quiet", "--wheel", "--out-dir", str(tmp_path)]
    subprocess.run([str(uv), *trusts, "build", *options, str(REPOSITORY)], check=True)
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run([python, "-m", "venv", str(tmp_path / "venv")], check=True)
    run = tmp_path / "venv" / "bin"
    subprocess.run([str(run / "pip"), "install", "--quiet", f"{wheel}[all]"], check=True)
    (tmp_path / "work" / "flows").mkdir(parents=True)
    (tmp_path / "work" / "flows" / "__init__.py").write_text("raise RuntimeError('mine')\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PREFECT_"))}
    environment = {**kept, "PYTHONPATH": str(tmp_path / "work"), "HOME": str(tmp_path)}
    for command in (
        [str(run / "python"), "-W", "error", "-c", TINY],
        [str(run / "privpipe"), "demo", "--records", "1797", "--workers", "1", "--out", "demo"],
    ):
        ran = subprocess.run(
            command,
            cwd=tmp_path / "work",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]


@pytest.mark.parametrize("version", VERSIONS)
def test_setup__works_with_nothing_but_python_and_make(
    version: str, begun: dict[str, SetUp | None]
) -> None:
    setup = begun[version]
    if setup is None:
        pytest.skip(f"no Python {version} here")
    clone, bare = setup.folder / "clone", setup.bare
    assert shutil.which("uv", path=bare["PATH"]) is None
    told, _ = setup.making.communicate()
    assert setup.making.returncode == 0, told[-4000:]
    ran = subprocess.run(
        [str(clone / ".venv/bin/python"), "-W", "error", "-c", TINY],
        cwd=setup.folder,
        env={**bare, "HOME": str(setup.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert '"null_space"' in ran.stdout
    shutil.rmtree(clone / ".venv")
