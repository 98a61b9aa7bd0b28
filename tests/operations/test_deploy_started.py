"""Compose, Kubernetes and units: their processes by their own command lines make a release.

There is no container runtime and no systemd here. Words and variables are read from the files;
ports, folders and names of hosts are those of the test. PostgreSQL is the machine's own, and moto
stands for MinIO. Processes of units start under the filter of system calls of their unit.
"""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.operations.whole_cluster import POSTGRES, ROOT, WholeCluster
from tests.operations.whole_runs import check_same, name_of, open_installation

DEPLOY = ROOT / "deploy"
Part = tuple[list[str], dict[str, str]]
"""Words and variables of a process."""


def read_compose() -> dict[str, Part]:
    """Of each service that runs our image."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return {
        name: (shlex.split(one["command"]), one.get("environment") or {})
        for name, one in services.items()
        if one["image"].startswith("privpipe")
    }


def read_kubernetes() -> dict[str, Part]:
    """Of each container; the operator names a worker, and Prefect's server is elsewhere."""
    pods = list[dict[str, Any]]()
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            spec = one.get("spec", {})
            found = [spec.get(part, {}).get("spec") for part in ("worker", "scheduler")]
            pods += [pod for pod in (*found, spec.get("template", {}).get("spec")) if pod]
    parts = dict[str, Part]()
    for container in (one for pod in pods for one in pod["containers"]):
        words = [word.replace("$(DASK_WORKER_NAME)", "one") for word in container["args"]]
        parts[container["name"]] = words, {one["name"]: one["value"] for one in container["env"]}
    parts["workers"] = parts.pop("worker")
    return {"server": read_compose()["server"], **parts}


def read_units(folder: Path) -> dict[str, Part]:
    """Of each unit, confined as it says."""
    parts = dict[str, Part]()
    for unit in sorted((DEPLOY / "systemd").glob("*.service")):
        text = unit.read_text()
        [line] = re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)
        words = shlex.split(line.replace("${SCHEDULER_HOST}", "scheduler"))
        given = " ".join(re.findall(r"^Environment=(.+)$", text, re.MULTILINE))
        copy = folder / unit.name
        shutil.copy(unit, copy)
        confined = [sys.executable, "-m", "tests.operations.confined", str(copy), *words]
        name = unit.stem.removeprefix("privpipe-").removeprefix("prefect-")
        parts[name] = (
            confined,
            {"PYTHONPATH": str(ROOT), **dict(one.split("=", 1) for one in given.split())},
        )
    return parts


class FromFiles(WholeCluster):
    """An installation whose processes are those of files.

    Parameters
    ----------
    folder
        As `WholeCluster`.
    read
        Gives the processes.
    """

    def __init__(self, folder: Path, read: Callable[[], dict[str, Part]]) -> None:
        self.parts = read()
        super().__init__(folder)
        self.environment["PREFECT_API_SSL_CERT_FILE"] = str(folder / "certs" / "authority.pem")

    @property
    def api(self) -> str:
        return f"https://127.0.0.1:{self.ports['server']}/api"

    def _list_commands(self) -> dict[str, list[str]]:
        usual = super()._list_commands()
        commands = {name: usual[name] for name in ("s3", "database") if name in usual}
        for name in ("buckets", "server", "scheduler", "workers", "runs"):
            if name in self.parts:
                words, given = self.parts[name]
                commands[name] = [self.place(word) for word in words]
                self.own[name] = {key: self.place(text) for key, text in given.items()}
        assert set(self.parts) <= set(commands), "each part of a file is started"
        return commands

    def place(self, text: str) -> str:
        """With the test's ports, folders and hosts."""
        for number, name in (("4200", "server"), ("8786", "scheduler"), ("8787", "dashboard")):
            text = re.sub(rf"\b{number}\b", str(self.ports[name]), text)
        for given, here in (
            ("/opt/privpipe/.venv/bin", str(Path(sys.executable).parent)),
            ("/opt/privpipe/deploy", str(DEPLOY)),
            ("/etc/privpipe/certs", str(self.folder / "certs")),
            ("/var/lib/privpipe", str(self.folder)),
            ("/scratch", str(self.folder / "scratch")) if text == "/scratch" else ("", ""),
            ("0.0.0.0", "127.0.0.1"),
            ("tls://privpipe-scheduler:", "tls://127.0.0.1:"),
            ("tls://scheduler:", "tls://127.0.0.1:"),
        ):
            text = text.replace(given, here) if given else text
        return text


@pytest.mark.parametrize("kind", ["compose", "kubernetes", "systemd"])
def test_files__name_each_process_and_no_place_of_the_image_is_left(
    kind: str, tmp_path: Path
) -> None:
    parts = READERS[kind](tmp_path)
    assert {"server", "scheduler", "workers", "runs"} <= set(parts)
    left = re.compile(r"/opt/privpipe|/etc/privpipe|/var/lib/privpipe|\$[({]")
    whole = object.__new__(FromFiles)
    whole.folder, whole.ports = tmp_path, {"server": 1, "scheduler": 2, "dashboard": 3}
    for words, given in parts.values():
        assert not left.search(" ".join(map(whole.place, [*words, *given.values()])))


READERS: dict[str, Callable[[Path], dict[str, Part]]] = {
    "compose": lambda _: read_compose(),
    "kubernetes": lambda _: read_kubernetes(),
    "systemd": read_units,
}


@pytest.mark.slow
@pytest.mark.skipif(POSTGRES is None, reason="no PostgreSQL")
@pytest.mark.parametrize("kind", ["compose", "kubernetes", "systemd"])
def test_processes__by_the_command_lines_of_the_files_make_a_release(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "systemd" and shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    certs = tmp_path / "certs"
    monkeypatch.setenv("SSL_CERT_FILE", str(certs / "authority.pem"))  # what asks the server
    with open_installation(
        tmp_path, partial(FromFiles, read=partial(READERS[kind], tmp_path))
    ) as whole:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        assert whole.wait_end(whole.begin("run.toml", at.isoformat()))[0] == "COMPLETED", (
            whole.describe()
        )
        check_same(whole, name_of(at))
        pages = f"127.0.0.1:{whole.ports['dashboard']}/privpipe"
        if kind == "systemd":  # of its own machine alone; a tunnel leads there
            assert httpx.get(f"http://{pages}").status_code == httpx.codes.OK
            return
        trusting = ssl.create_default_context(cafile=certs / "authority.pem")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"https://{pages}", verify=trusting)
        trusting.load_cert_chain(certs / "client.pem", certs / "client.key")
        assert httpx.get(f"https://{pages}", verify=trusting).status_code == httpx.codes.OK
