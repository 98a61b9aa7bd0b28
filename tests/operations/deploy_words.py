"""Words and variables of the processes that `deploy/` starts, read from its files.

There is no container runtime where tests run, and no systemd: ports, folders and names of hosts are
exchanged for those of the test, and nothing else is.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["DEPLOY", "Part", "place", "read_compose", "read_kubernetes", "read_units", "shorten"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
Part = tuple[list[str], dict[str, str]]
"""Words and variables of a process."""

WATCHING = ("prometheus", "exporter")
"""Services whose images are others', and whose programs Debian has; Grafana is in none."""

PORTS = {
    "4200": "server",
    "8786": "scheduler",
    "8787": "dashboard",
    "9090": "prometheus",
    "9100": "exporter",
}


def read_compose() -> dict[str, Part]:
    """Of each service that runs our image, and of those that watch it."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    return {
        name: (shlex.split(one["command"]), one.get("environment") or {})
        for name, one in services.items()
        if one["image"].startswith("privpipe") or name in WATCHING
    }


def read_kubernetes() -> dict[str, Part]:
    """Of each container; Prefect's server is elsewhere."""
    pods = list[dict[str, Any]]()
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text()):
            spec = one.get("spec", {})
            found = [spec.get(part, {}).get("spec") for part in ("worker", "scheduler")]
            pods += [pod for pod in (*found, spec.get("template", {}).get("spec")) if pod]
    parts = dict[str, Part]()
    for container in (one for pod in pods for one in pod["containers"]):
        parts[container["name"]] = (
            container["args"],
            {one["name"]: one["value"] for one in container.get("env", ())},
        )
    parts["workers"] = parts.pop("worker")
    return {"server": read_compose()["server"], **parts}


def read_units(folder: Path) -> dict[str, Part]:
    """Of each unit, under the filter of system calls that it says.

    Parameters
    ----------
    folder
        Gets copies of the units, which whoever confines the processes reads.
    """
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
        variables = dict(one.split("=", 1) for one in given.split())
        parts[name] = confined, {"PYTHONPATH": str(ROOT), **variables}
    return parts


def place(text: str, folder: Path, ports: Mapping[str, int], name: str = "") -> str:
    """A word, a variable or a file with the ports, folders and hosts of a test.

    Parameters
    ----------
    name
        Of the process. Two workers stand for two machines: each has a scratch folder and a name of
        its own.
    """
    for number, of in PORTS.items():
        if of in ports:
            text = re.sub(rf"\b{number}\b", str(ports[of]), text)
    scratch = str(folder / f"scratch-{name.rpartition('-')[2]}")
    for given, here in (
        ("/opt/privpipe/.venv/bin", str(Path(sys.executable).parent)),
        ("/opt/privpipe/deploy", str(DEPLOY)),
        ("/etc/privpipe/certs", str(folder / "certs")),
        ("/etc/prometheus", str(folder)),
        ("=/prometheus", f"={folder}/stored"),
        ("/var/lib/privpipe/scratch", scratch),
        ("/var/lib/privpipe", str(folder)),
        ("$(DASK_WORKER_NAME)", name),
        ("0.0.0.0", "127.0.0.1"),
    ):
        text = text.replace(given, here)
    text = scratch if text == "/scratch" else text
    return re.sub(r"(?<![\w-])(privpipe-)?(scheduler|exporter):(?=\d)", "127.0.0.1:", text)


SHORTER = {
    r"for: \d+[mh]": "for: 10s",
    r"\[15m\]": "[60s]",
    r"offset 15m": "offset 60s",
    r"\[10m\]": "[240s]",
    r"26 \* 3600": "300",
}
"""Times of `deploy/alerts.yaml` for who cannot wait a night."""


def shorten(alerts: str) -> str:
    """Rules that fire within a minute or so, and after five minutes instead of 26 hours."""
    for pattern, instead in SHORTER.items():
        alerts, n = re.subn(pattern, instead, alerts)
        assert n, f"{pattern} is in no rule"
    return alerts
