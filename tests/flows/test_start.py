"""The start of a run: its first line before any library, nothing started for a mistyped name.

What is compared is the order of events that the interpreter itself reports (imports, processes,
sockets), never seconds: a fast machine must not pass what a slow one would not.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest

from privpipe.cluster.workers.processes import WORKER_ENVIRONMENT, prepare_forking
from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options, write_value
from privpipe.pipeline.runs.first_look import RANGES, looks_whole
from privpipe.sanitizers import METHODS
from tests.standard import write_standard

HEAVY = ("numpy", "scipy", "pandas", "zarr", "dask", "distributed", "sklearn", "numba", "prefect")
"""Libraries that take longer to load than a first line may."""

CONFIG = """
[collection]
path = "{folder}/records.zarr"
desired = ["late"]
confidential = ["party"]
[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01
[release]
path = "{folder}/release.zarr"
[cluster]
workers = 1
dashboard = "off"
[audit]
adversaries = []
[gate]
enforce = false
"""

PROGRAM = """
import json, os, sys
events, heavy = [], set(sys.argv.pop().split(","))

def watch(event, args):
    if event == "import" and args[0] in heavy:
        events.append(args[0])
        heavy.discard(args[0])
    elif event == "subprocess.Popen":
        events.append("server" if "served_prefect" in str(args[1]) else "another process")
    elif event == "socket.bind" and "listener" in str(args[1]) and "pymp" in str(args[1]):
        events.append("fork server")
    elif event == "socket.connect" and "first request" not in events and "server" in events:
        events.append("first request")

class Stderr:
    def __init__(self, stream):
        self.stream = stream
    def __getattr__(self, name):
        return getattr(self.stream, name)
    def write(self, text):
        events.extend(line[:8].strip() for line in text.splitlines() if line[:8].strip())
        return self.stream.write(text)

sys.addaudithook(watch)
if __name__ == "__main__":
    sys.stderr = Stderr(sys.stderr)
    from privpipe.command import main
    try:
        main()
    finally:
        json.dump({"events": events}, open(os.environ["SEEN"], "w"))
"""
"""The command, and in the file that SEEN names what happened, in its order."""


def call(folder: Path, *arguments: str, code: int) -> list[str]:
    """Events of a command in a process of its own."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(folder / "home"), "SEEN": str(folder / "seen.json")}
    (folder / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), *arguments, ",".join(HEAVY)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, done.stderr
    (folder / "said.txt").write_text(done.stderr)
    events: list[str] = json.loads((folder / "seen.json").read_text())["events"]
    return events


@pytest.fixture
def config(tmp_path: Path) -> Path:
    write_standard(str(tmp_path / "records.zarr"), 400)
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.format(folder=tmp_path))
    return path


def change(config: Path, old: str, new: str) -> str:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return str(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("records.zarr", "recrods.zarr", 4),
        ('"late"', '"lat"', 3),
        ('"party"', '"partly"', 3),
        ("0.05", "-1.0", 2),
        ("0.05", '0.05\nrule = "grabby"', 2),
        ('"null_space"', '"nullspace"', 2),
        ("0.05", "0.05\nruel = 1", 2),
        ("utility_budget = 0.05\n", "", 2),
    ],
    ids=["path", "desired", "confidential", "value", "choice", "method", "key", "missing"],
)
def test_run__starts_nothing_for_a_mistyped_name(
    config: Path, old: str, new: str, code: int
) -> None:
    wrong = change(config, old, new)
    events = call(config.parent, "run", wrong, code=code)
    assert events[0] == "begin"
    if code == OptionError.exit_code:  # it is said in the words of whoever reads all of it
        with pytest.raises(OptionError) as refused:
            read_options(wrong)
        said = (config.parent / "said.txt").read_text()
        assert f"error[{refused.value.code}]: {refused.value.message}" in said
    assert {"server", "another process", "fork server"}.isdisjoint(events)
    # The libraries are what says it with its reason: they came, and came after the first line.
    assert "zarr" in events


@pytest.mark.slow
def test_run__starts_the_server_before_it_loads_and_ends_it_with_a_refusal(config: Path) -> None:
    """The control: what only the libraries know is refused with the server begun."""
    wrong = change(config, 'release.zarr"', 'release.zarr"\ninclude = ["party"]')
    events = call(config.parent, "run", wrong, code=2)
    assert events[0] == "begin"
    order = [one for one in events if one in ("server", "numpy", "zarr")]
    assert order == ["server", "numpy", "zarr"]
    assert not list_left(config.parent)


@pytest.mark.slow
@pytest.mark.skipif(not prepare_forking(), reason="workers are not forked here")
def test_run__starts_its_workers_beside_its_server(config: Path) -> None:
    """Neither waits for the other; both are gone with the run."""
    events = call(config.parent, "train", str(config), code=0)
    promised = ["begin", "server", "numpy", "check", "fork server", "prefect", "first request"]
    assert [one for one in events if one in promised] == promised
    assert events.index("first request") < events.index("cluster") < events.index("train")
    assert not list_left(config.parent)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(not prepare_forking(), reason="workers are not forked here")
def test_run__leaves_nothing_where_it_is_ended_while_both_start(
    config: Path, number: signal.Signals
) -> None:
    """As Ctrl-C does it: the signal reaches every process of the group."""
    folder = config.parent
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    run = subprocess.Popen(
        [sys.executable, "-c", "from privpipe.command import main; main()", "run", str(config)],
        env=environment | {"PREFECT_HOME": str(folder / "home")},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    deadline = time.monotonic() + 300
    while not is_loading(run.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    begun = psutil.Process(run.pid).children(recursive=True)
    assert sum("served_prefect" in " ".join(one.cmdline()) for one in begun) == 1
    os.kill(run.pid, number) if number == signal.SIGKILL else os.killpg(run.pid, number)
    said = run.communicate(timeout=300)[1]
    assert "Traceback" not in said, said
    _, alive = psutil.wait_procs(begun, timeout=120)
    assert not alive
    assert not (folder / "release.zarr").exists()


def is_loading(run: int) -> bool:
    """Whether the fork server of a run has begun to load what workers need."""
    for one in psutil.Process(run).children():
        if "forkserver" in " ".join(one.cmdline()):
            return "_multiarray_umath" in Path(f"/proc/{one.pid}/maps").read_text()
    return False


def list_left(folder: Path) -> list[int]:
    """Processes that know of a run's home, once they had time to end."""
    found = []
    for one in psutil.process_iter():
        try:
            if one.environ().get("PREFECT_HOME") == str(folder / "home"):
                found.append(one)
        except psutil.Error:
            continue
    return [one.pid for one in psutil.wait_procs(found, timeout=60)[1]]


AHEAD = """
import json, os
from multiprocessing import forkserver
from pathlib import Path
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.cluster.workers.processes import begin_forking
if __name__ == "__main__":
    before = dict(os.environ)
    begin_forking()
    ahead, same = forkserver._forkserver._forkserver_pid, dict(os.environ) == before
    with connect(ClusterOptions(workers=1, dashboard="off")) as client:
        parents = list(client.run(os.getppid).values())
    given = dict(one.split("=", 1) for one in Path(f"/proc/{ahead}/environ").read_text()
                 .split("\\0") if "=" in one)
    print(json.dumps({"ahead": ahead, "parents": parents, "same": same, "given": given}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not prepare_forking(), reason="workers are not forked here")
def test_begin_forking__is_what_a_cluster_would_have_begun(tmp_path: Path) -> None:
    """Workers come from it, with the settings that a nanny gives before Python starts."""
    program = tmp_path / "ahead.py"
    program.write_text(AHEAD)
    environment = {**os.environ, "OMP_NUM_THREADS": "7"}
    done = subprocess.run(
        [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["parents"] == [found["ahead"]]
    assert found["same"], "what this process starts later must not have them"
    wanted = WORKER_ENVIRONMENT | {"PYTHONHASHSEED": "6640"}
    assert {name: found["given"].get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("old", "new", "whole"),
    [
        ("[method]", "[method]", True),
        ("records.zarr", "recrods.zarr", False),
        ('"late"', '"lat"', False),
        ('"party"', '"Party"', False),
        ("[method]", '[training]\npath = "nowhere.zarr"\n[method]', False),
        ("[method]", "[training]\n[method]", False),
        ("[collection]", "[collections]", False),
        ("[method]", "[method", False),
        ('"{folder}/records.zarr"', '"s3://bucket/records.zarr"', True),
        ('desired = ["late"]', "desired = 3", False),
        ("utility_budget = 0.05", "utility_budget = -1.0", False),
        ("utility_budget = 0.05", "utility_budget = 0", True),
        ("ridge = 0.01", "ridge = nan", False),
        ("workers = 1", "workers = -1", False),
        ('name = "null_space"', 'name = "noisy"\nepsilon = 0', False),
        ('name = "null_space"', 'name = "noisy"\nepsilon = 0.001', False),
        (
            "[release]",
            '[method.filter]\nname = "minimax_least_squares"\nn_filtered = 0\n[release]',
            False,
        ),
        ("[release]", "[unknown]\nnumber = -1\n[release]", False),
        ('name = "null_space"', 'name = "nullspace"', False),
        ('name = "null_space"', "name = 3", False),
        ("workers = 1", 'kind = "lokal"', False),
        ("workers = 1", 'kind = "slurm"', True),
        ("adversaries = []", 'adversaries = ["logistic", "boosting"]', True),
        ("adversaries = []", 'adversaries = ["logistic", "boostin"]', False),
        ('name = "null_space"', 'name = "noisy"\nnoise = "gauss"', False),
        ("[release]", '[method.filter]\nname = "leace"\n[release]', False),
        ("[release]", '[method.filter]\nname = "noisy"\n[release]', False),
        ("[release]", '[[compare]]\n[compare.method]\nname = "laece"\n[release]', False),
        ("[release]", '[[compare]]\n[compare.method]\nname = "leace"\n[release]', True),
    ],
)
def test_looks_whole__is_what_the_files_show(config: Path, old: str, new: str, whole: bool) -> None:
    change(config, old.format(folder=config.parent), new)
    assert looks_whole({"config": str(config)}) is whole


def test_looks_whole__knows_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVPIPE_COLLECTION__PATH", "nowhere.zarr")
    assert not looks_whole({"config": str(config)})
    monkeypatch.delenv("PRIVPIPE_COLLECTION__PATH")
    monkeypatch.setenv("PRIVPIPE_TRAINING__PATH", "nowhere.zarr")
    assert not looks_whole({"config": str(config)})
    # A place is a text, also where it would be a list.
    (config.parent / "re,cords.zarr").symlink_to(config.parent / "records.zarr")
    monkeypatch.setenv("PRIVPIPE_TRAINING__PATH", str(config.parent / "re,cords.zarr"))
    assert looks_whole({"config": str(config)})


@pytest.mark.parametrize(
    ("name", "value", "whole"),
    [
        ("PRIVPIPE_CLUSTER__KIND", "lokal", False),
        ("PRIVPIPE_CLUSTER__KIND", "slurm", True),
        ("privpipe_cluster__workers", "-1", False),
        ("PRIVPIPE_CLUSTER__WORKERS", "0", True),
        ("PRIVPIPE_METHOD__NAME", "nullspace", False),
        ("PRIVPIPE_METHOD__UTILITY_BUDGET", "-0.5", False),
        ("PRIVPIPE_AUDIT__ADVERSARIES", "logistic,boosting", True),
        ("PRIVPIPE_AUDIT__ADVERSARIES", "logistic, boostin", False),
        ("PRIVPIPE_AUDIT__ADVERSARIES", '["logistic"]', True),
        ("PRIVPIPE_GATE__MUST_FIND", "7", False),
        ("PRIVPIPE_PRIVACY__EPHEMERAL", "maybe", False),
        ("PRIVPIPE_SHOP__KIND", "lokal", True),
    ],
)
def test_looks_whole__knows_values_of_the_environment(
    name: str, value: str, whole: bool, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is read in earnest, which is asked, too."""
    monkeypatch.setenv(name, value)
    assert looks_whole({"config": str(config)}) is whole
    if whole:
        read_options(str(config))
    else:
        with pytest.raises(OptionError):
            read_options(str(config))


def test_looks_whole__reads_what_the_environment_corrects(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(config, "utility_budget = 0.05", "utility_budget = -1.0")
    assert not looks_whole({"config": str(config)})
    monkeypatch.setenv("PRIVPIPE_METHOD__UTILITY_BUDGET", "0.02")
    assert looks_whole({"config": str(config)})


RANGES_OF_ALL: dict[str, list[Any]] = json.loads(RANGES.read_text("utf-8"))
TABLES = [
    name for name in RANGES_OF_ALL if "." not in name and name not in ("", "method", "filter")
]
LIMITED = {option: limits for option, limits in RANGES_OF_ALL.items() if "." in option and limits}
CHOICES = {option: limits for option, limits in LIMITED.items() if isinstance(limits[0], str)}


def require(table: str) -> dict[str, Any]:
    """What a method or section cannot do without, each of which is allowed."""
    ranges = {key: LIMITED.get(f"{table}.{key}") for key in RANGES_OF_ALL.get(table, ())}
    return {key: "one" if some is None else min(1, some[1]) for key, some in ranges.items()}


def write_with(config: Path, option: str, value: Any) -> dict[str, str]:
    """A configuration with one option of a section, of a method, or of the filter within one."""
    section, _, key = option.partition(".")
    content = tomllib.loads(config.read_text())
    if section == "method":
        content["method"] = require(value) | {key: value}
    elif section == "filter":
        within = require(value) | {key: value}
        content["method"] = {"name": "noisy"} | require("noisy") | {section: within}
    elif section in METHODS:
        content["method"] = {"name": section} | require(section) | {key: value}
    elif section == "training":
        content[section] = {"path": content["collection"]["path"], key: value}
    else:
        content[section] = content.get(section, {}) | {key: value}
    lines = [
        f"[{table}]\n" + "".join(f"{k} = {write_value(v)}\n" for k, v in keys.items())
        for table, keys in content.items()
    ]
    path = config.with_name("other.toml")
    path.write_text("".join(lines))
    return {"config": str(path)}


@pytest.mark.parametrize("option", CHOICES)
def test_looks_whole__doubts_a_choice_that_is_refused(option: str, config: Path) -> None:
    """For every option with choices: who refuses it names them all, and each is taken."""
    wrapped = option == "audit.adversaries"
    assert len(CHOICES[option]) > 1
    for choice in CHOICES[option]:
        assert looks_whole(write_with(config, option, [choice] if wrapped else choice)), choice
    for wrong in ("grabby", CHOICES[option][0].upper(), ""):
        given = write_with(config, option, [wrong] if wrapped else wrong)
        assert not looks_whole(given)
        with pytest.raises(OptionError) as refused:
            read_options(given["config"])
        assert refused.value.code == "config"
        said = re.findall(r"(?m)^.* (?:of: |Input should be ').*$", refused.value.message)
        assert len(said) == 1
        line = said[0]
        assert option.rpartition(".")[2] in line
        assert all(choice in line for choice in CHOICES[option])
        assert not wrong or wrong not in line


@pytest.mark.parametrize("table", TABLES)
def test_looks_whole__doubts_a_name_that_is_refused(table: str, config: Path) -> None:
    """And what is missing: of every section and method, as it is read in earnest."""
    given = write_with(config, f"{table}.grabby", 1)
    assert not looks_whole(given)
    with pytest.raises(OptionError, match="grabby is not known"):
        read_options(given["config"])
    path = Path(given["config"])
    path.write_text(path.read_text().replace("grabby = 1\n", ""))
    assert looks_whole(given)
    for name in RANGES_OF_ALL[table]:
        change(path, next(line for line in path.read_text().splitlines() if name in line), "")
        assert not looks_whole(given)
        with pytest.raises(OptionError, match=rf"\b{name} is missing"):
            read_options(given["config"])


@pytest.mark.parametrize("table", ["", "method", "filter"])
def test_looks_whole__doubts_what_has_no_name(table: str, config: Path) -> None:
    path = Path(write_with(config, "noisy.threshold", 1.0)["config"])
    text = {"": "[clutser]", "method": "", "filter": "[method.filter]\nn_filtered = 2"}[table]
    path.write_text(
        path.read_text().replace(
            'name = "noisy"\n', "" if table == "method" else 'name = "noisy"\n'
        )
        + text
    )
    assert not looks_whole({"config": str(path)})
    with pytest.raises(OptionError):
        read_options(str(path))


@pytest.mark.parametrize("option", sorted(LIMITED.keys() - CHOICES.keys()))
def test_looks_whole__doubts_a_number_that_is_refused(option: str, config: Path) -> None:
    low, high = LIMITED[option]
    wrong = [one for one in (low - 1, high * 2) if not low <= one <= high]
    assert wrong
    for one in wrong:
        given = write_with(config, option, one)
        assert not looks_whole(given)
        with pytest.raises(OptionError, match=rf"\b{option.rpartition('.')[2]}\b.*: "):
            read_options(given["config"])


def test_looks_whole__of_files(tmp_path: Path, config: Path) -> None:
    assert not looks_whole({"config": str(tmp_path / "none.toml")})
    assert looks_whole({"model": str(config), "source": "-", "dest": "new.csv"})
    assert not looks_whole({"model": str(config), "source": str(tmp_path / "none.csv")})
    assert looks_whole({"out": "new"})
    os.mkfifo(tmp_path / "pipe.toml")
    looks_whole({"config": str(tmp_path / "pipe.toml")})  # comes back: a pipe is not waited for
