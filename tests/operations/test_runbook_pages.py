"""The RUNBOOK's other pages, after the first one and in its folder: each command by its own words.

A command that stands there and is neither played nor named below with the reason fails the test.
What is in capitals, or three dots, is what the reader fills in; folders of a server are this one's.
Runs where PRIVPIPE_TEST_RUNBOOK is set.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.operations.test_runbook import ROOT, free_port, read_blocks

PROGRAMS = {
    *("privpipe", "prefect", "curl", "openssl", "createdb", "cp", "systemctl", "ssh", "docker"),
    *("kubectl", "journalctl", "make", "systemd-analyze"),
}

ELSEWHERE = {
    "createdb prefect": "a database of PostgreSQL is made by every test of a whole installation",
    "cp deploy/systemd/privpipe-* /etc/systemd/system": "units: test_deploy_started",
    "systemctl enable --now privpipe-prefect-server privpipe-scheduler privpipe-workers "
    "privpipe-runs privpipe-promises.timer": "no systemd; their processes: test_deploy_started",
    "systemctl stop privpipe-runs": "no systemd",
    "systemctl status privpipe-scheduler": "no systemd",
    "systemctl status privpipe-workers": "no systemd",
    "journalctl -u privpipe-workers": "no systemd",
    "systemd-analyze verify": "test_deploy_files",
    "ssh -L 8787:127.0.0.1:8787 HOST": "no second host",
    "kubectl apply -k deploy/kubernetes": "no cluster; its processes: test_deploy_started",
    "kubectl exec deploy/privpipe-runs -c runs -- privpipe deploy": "no cluster; the same with the "
    "variables of that container: test_deploy_started",
    "kubectl kustomize": "test_deploy_files",
    "docker compose -f deploy/compose.yaml up": "no container runtime: test_deploy_started",
    "make test-whole": "runs itself",
    "make test-s3": "runs itself",
    "privpipe withdraw": "with its words: withdraw NAME run.toml",
    "privpipe gaps": "with its words: privpipe gaps release",
    "privpipe doctor": "with its words: privpipe doctor run.toml",
}


def read_pages() -> str:
    return (ROOT / "deploy" / "RUNBOOK.md").read_text().split("\n## 2.")[1]


def list_commands() -> set[str]:
    """Commands within the text of the other pages."""
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", read_pages())]
    return {span for span in spans if span.split()[0] in PROGRAMS and " " in span} | {
        span for span in spans if span == "withdraw NAME run.toml"
    }


PLAYED = set[str]()


def of(span: str, **filled: str) -> str:
    """A command of the RUNBOOK with what the reader fills in; AssertionError if it is not there."""
    assert span in " ".join(read_pages().split()), span
    PLAYED.add(span)
    for name, text in filled.items():
        assert name in span, name
        span = span.replace(name, text)
    return span


def fill(span: str, instead: dict[str, str]) -> str:
    """Likewise, of what is no word."""
    found = of(span)
    for given, text in instead.items():
        assert given in found, given
        found = found.replace(given, text)
    return found


RESUME = "prefect deployment run privpipe-release/release -p logical_time=2026-11-22T02:00:00Z"
APPEND = "privpipe append SOURCE COLLECTION --partition NAME --time ..."
COLUMNS = "--features x --labels sign,who --categorical sign"
CURL = "curl --cacert authority.pem --cert client.pem --key client.key"
PKCS12 = "openssl pkcs12 -export -in client.pem -inkey client.key -out client.p12"
CERTS = "privpipe certs /etc/privpipe/certs --hosts scheduler.example,10.1.2.3"
TLS = "DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__TLS__CERT=/etc/privpipe/certs/scheduler.pem"

START = """
restart() {{
  kill $(cat workers.pid scheduler.pid); sleep 3
  start scheduler dask scheduler --host 127.0.0.1 --port "$SCHEDULER_PORT" --protocol tls \\
    {pages} --preload deploy/preload.py
  start workers dask worker "tls://127.0.0.1:$SCHEDULER_PORT" --nworkers 2 --nthreads 1 \\
    --memory-limit 2GiB --no-dashboard --local-directory scratch --preload deploy/preload.py
}}
there() {{ until [ -e "$1/zarr.json" ]; do sleep 2; done; }}
"""

CONFIG = """
cat > {name}.toml <<EOS
[collection]
path = "{records}.zarr"
desired = ["{wanted}"]
confidential = {hidden}
{training}
[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01
[release]
path = "{release}.zarr"
{incremental}
[cluster]
address = "tls://127.0.0.1:$SCHEDULER_PORT"
[audit]
holdout = 0.5
adversaries = {adversaries}
[gate]
{gate}
EOS
"""
REFUSED = CONFIG.format(
    name="refused",
    records="records",
    wanted="zero",
    hidden='["digit"]',
    training="",
    release="releases/refused",
    incremental="",
    adversaries='["least_squares"]',
    gate="enforce = true\nconfidential_advantage_max = 0.15\nexposed_max = 0.05",
)
GROWING = CONFIG.format(
    name="incremental",
    records="growing",
    wanted="sign",
    hidden="[]",
    training='[training]\npath = "training.zarr"',
    release="grown",
    incremental="incremental = true",
    adversaries="[]",
    gate="enforce = false",
)
MAKE_RECORDS = """
python - <<'EOS'
import numpy as np
rng = np.random.default_rng(3)
for number, name in enumerate(("training", "monday", "tuesday")):
    x, who = rng.normal(size=(400, 3)), np.arange(400) + 400 * number
    np.savez(f"{name}.npz", x=x, sign=(x[:, 0] > 0).astype("int8"), who=who)
EOS
"""
FORBIDDEN = "curl -sf --cacert certs/authority.pem https://127.0.0.1:$PAGES_PORT/privpipe"
INCREMENT = "prefect deployment run privpipe-increment/incremental -p logical_time="


def write_script() -> str:
    """Page 1, then the commands of the other pages as somebody would type them."""
    pages = fill("--dashboard-address 0.0.0.0:8787", {"0.0.0.0:8787": '"127.0.0.1:$PAGES_PORT"'})
    certs = {"authority.pem": "certs/authority.pem"}
    client = {"client.pem": "certs/client.pem", "client.key": "certs/client.key"}
    key = TLS.replace("_CERT=", "_KEY=").replace(".pem", ".key")
    authority = TLS.replace("_CERT=", "_CA_FILE=").replace("scheduler.pem", "authority.pem")
    here = [text.replace("/etc/privpipe/certs", "$PWD/certs") for text in (TLS, key, authority)]
    of(TLS)
    return "\n".join(
        [
            "set -euo pipefail",
            *read_blocks(),
            "set -x",
            START.format(pages=pages),
            # Places, and the pages by certificate.
            fill(CERTS, {"/etc/privpipe/certs": "other-certs"}),
            fill(PKCS12, client) + " -passout pass:x",
            of("privpipe doctor run.toml"),
            *(f"export {text}" for text in here),
            "restart",
            f'pages="{fill(CURL, certs | client)} -sf https://127.0.0.1:$PAGES_PORT"',
            "until $pages/privpipe > seen; do sleep 1; done",
            f"if {FORBIDDEN}; then echo without a certificate; exit 1; fi",
            # Stop and resume.
            of("prefect deployment schedule pause --all"),
            f"{of(RESUME)}; there releases/20261122T020000Z.zarr",
            of("privpipe run run.toml --time 2026-11-22T02:00:00Z"),
            f"until {of('privpipe gaps release')}; do sleep 5; done",
            # Certificates.
            fill("privpipe certs FOLDER --renew", {"FOLDER": "certs"}),
            "restart",
            f"{of(RESUME).replace('T02', 'T04')}; there releases/20261122T040000Z.zarr",
            of("privpipe forget-key"),
            # What a gate refused, and an officer approves.
            MAKE_RECORDS + REFUSED + GROWING,
            of("privpipe check") + " refused.toml",
            "code=0; privpipe run refused.toml || code=$?; [ $code = 6 ]",
            fill(
                "privpipe approve RELEASE --name NAME --reason REASON",
                {"RELEASE": "releases/refused.zarr", "--name NAME": "--name Ada", "REASON": "test"},
            ),
            "privpipe run refused.toml; there releases/refused.zarr",
            # A release that grows.
            f"privpipe ingest training.npz training.zarr {COLUMNS}",
            *(
                fill(
                    APPEND,
                    {
                        "SOURCE": f"{name}.npz",
                        "COLLECTION": "growing.zarr",
                        "NAME": name,
                        "...": time,
                    },
                )
                + f" {COLUMNS}"
                for name, time in (
                    ("monday", "2026-11-23T00:00:00Z"),
                    ("tuesday", "2026-11-24T00:00:00Z"),
                )
            ),
            f"{INCREMENT}2026-11-25T00:00:00Z",
            "there grown.zarr; until privpipe inspect grown.zarr --verify; do sleep 2; done",
            "seq 500 520 > people.txt",
            fill(
                'privpipe erase COLLECTION --where "name in FILE"',
                {"COLLECTION": "growing.zarr", "name in FILE": "who in people.txt"},
            )
            + " --name Ada",
            "privpipe " + fill("withdraw NAME run.toml", {"NAME": "tuesday", "run": "incremental"}),
            # Another name.
            "sed -i 's|- name: release$|- name: nightly|' deploy/prefect.yaml",
            of("privpipe deploy") + " deploy/prefect.yaml",
            fill("prefect deployment delete FLOW/OLD", {"FLOW/OLD": "privpipe-release/release"}),
            of("privpipe gaps OLD --end", OLD="release"),
            of("privpipe gaps NAME --waive", NAME="release"),
            fill(
                "privpipe run CONFIG --time TIME",
                {"CONFIG": "run.toml", "TIME": "2026-11-22T05:00:00Z"},
            ),
            "there releases/20261122T050000Z.zarr",
            "echo all was played",
        ]
    )


def test_pages__each_command_is_played_or_named() -> None:
    script = write_script()
    assert list_commands() - PLAYED == set(ELSEWHERE)
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("PRIVPIPE_TEST_RUNBOOK" not in os.environ, reason="PRIVPIPE_TEST_RUNBOOK")
def test_pages__are_played_after_the_first(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DASK"))}
    environment |= {"PRIVPIPE": str(ROOT), "COLUMNS": "200"}
    environment |= {f"{name}_PORT": free_port() for name in ("PREFECT", "SCHEDULER", "PAGES")}
    process = subprocess.Popen(
        ["bash", "-c", write_script()],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=(tmp_path / "said.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        process.wait(timeout=1700)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
    said = (tmp_path / "said.log").read_text()
    assert process.returncode == 0, said[-3000:]
    assert said.rstrip().endswith("all was played")
