"""Everything that `deploy/` starts, as real processes on the loopback, each to be killed.

Prefect's server and worker, a scheduler and two workers behind TLS, and where Debian's programs are
there Prometheus and its exporter: each by the words of the files. PostgreSQL (as its own user where
the tests are root) and an S3 server stand for the images of others.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx

from privpipe.cluster.workers.certificates import make_certificates
from privpipe.cluster.workers.processes import write_configuration
from tests.operations.deploy_words import DEPLOY, ROOT, Part, place, read_compose, shorten

__all__ = ["POSTGRES", "PROMETHEUS", "WORKERS", "WholeCluster", "free_port", "stopped", "wait_for"]

PORTS = ("server", "scheduler", "database", "s3", "dashboard", "prometheus", "exporter")
WORKERS = ("worker-1", "worker-2")
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def find_postgres() -> str | None:
    """Folder of PostgreSQL's programs; None where there is none."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = shutil.which("initdb", path=os.pathsep.join([*map(str, places), os.environ["PATH"]]))
    return None if found is None else str(Path(found).parent)


POSTGRES = find_postgres()
TOOLS = ROOT / ".venv-prometheus" / "usr" / "bin"
PROGRAMS = {
    name: shutil.which(program) or shutil.which(program, path=TOOLS)
    for name, program in {
        "prometheus": "prometheus",
        "exporter": "prometheus-node-exporter",
    }.items()
}
PROMETHEUS = PROGRAMS["prometheus"] if all(PROGRAMS.values()) else None
"""Prometheus, where it and its exporter are here (`make prometheus`)."""


def _is_group(number: int) -> bool:
    """Whether a process of a group is left, one that nobody has waited for included."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(what: str, is_so: Callable[[], Any], seconds: float = 120.0) -> Any:
    """The first answer that is true; AssertionError after the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := is_so():
            return found
        time.sleep(0.25)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


@contextmanager
def stopped(groups: list[int]) -> Iterator[None]:
    """Groups of processes stand still, as on a machine that hangs, and go on."""
    for group in groups:
        os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        for group in groups:
            os.killpg(group, signal.SIGCONT)


class WholeCluster:
    """The processes of one installation, by name.

    Parameters
    ----------
    folder
        Working folder of all of them; logs are ``NAME.log``.
    read
        Gives words and variables of the processes, of compose.yaml by default.
    """

    def __init__(self, folder: Path, read: Callable[[], dict[str, Part]] = read_compose) -> None:
        self.folder = folder
        self.parts = read()
        self.ports = {name: free_port() for name in PORTS}
        self.secret = secrets.token_hex(16)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.own: dict[str, dict[str, str]] = {}
        """Variables of single processes."""
        make_certificates(folder / "certs")
        config = write_configuration(folder / "certs")
        # The test's own sessions and settings are none of theirs.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT", "DASK", "AWS"))}
        self.environment = kept | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": self.api,
            "PREFECT_API_SSL_CERT_FILE": str(folder / "certs" / "authority.pem"),
            "PREFECT_API_AUTH_STRING": f"privpipe:{self.secret}",
            "PREFECT_SERVER_API_AUTH_STRING": f"privpipe:{self.secret}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EVENTS_EXPIRED_BUCKET_BUFFER": "P7D",
            "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "5",
            "DO_NOT_TRACK": "1",
            "DASK_CONFIG": str(config),
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.ports['s3']}",
            "PRIVPIPE_KEYS": str(folder / "keys"),
            "PRIVPIPE_ACCOUNT": str(folder / "account"),
        }
        if POSTGRES is not None:
            self._make_database()
        self.commands = self._list_commands()

    @property
    def api(self) -> str:
        return f"https://127.0.0.1:{self.ports['server']}/api"

    @cached_property
    def trusting(self) -> ssl.SSLContext:
        """What shows the certificate of a client and believes the authority."""
        certs = self.folder / "certs"
        found = ssl.create_default_context(cafile=certs / "authority.pem")
        found.load_cert_chain(certs / "client.pem", certs / "client.key")
        return found

    @property
    def keeps_objects(self) -> bool:
        """Whether the S3 server has what it had when it is started again."""
        return "{folder}" in os.environ.get("PRIVPIPE_TEST_S3", "")

    def _list_commands(self) -> dict[str, list[str]]:
        s3 = os.environ.get("PRIVPIPE_TEST_S3") or (
            f"{shlex.quote(sys.executable)} -m moto.server -H 127.0.0.1 -p {{port}}"
        )
        (self.folder / "objects").mkdir(exist_ok=True)
        of_s3 = [
            word.format(port=self.ports["s3"], folder=self.folder / "objects")
            for word in shlex.split(s3)
        ]
        commands = {"s3": of_s3}
        if POSTGRES is not None:
            commands["database"] = self._database_command()
        for name in ("buckets", "server", "scheduler", *WORKERS, "runs"):
            self._add_part(commands, name)
        if PROMETHEUS is None:
            return commands
        if "prometheus" in self.parts:
            (self.folder / "alerts.yaml").write_text(shorten((DEPLOY / "alerts.yaml").read_text()))
            scraped = place((DEPLOY / "prometheus.yaml").read_text(), self.folder, self.ports)
            (self.folder / "prometheus.yaml").write_text(scraped.replace("15s", "2s"))
        for name in ("promises", "exporter", "prometheus"):
            self._add_part(commands, name)
        return commands

    def _add_part(self, commands: dict[str, list[str]], name: str) -> None:
        """A process by the words of the files; each of two workers is a machine of its own."""
        part = "workers" if name in WORKERS else name
        if part not in self.parts:
            return
        words, given = self.parts[part]
        placed = [place(word, self.folder, self.ports, name) for word in words]
        if "--nworkers" in placed:
            placed[placed.index("--nworkers") + 1] = "1"
        if part == "prometheus":
            port = f"--web.listen-address=127.0.0.1:{self.ports[part]}"
            placed = [str(PROGRAMS[part]), *placed, port]
        elif part == "exporter":
            placed = [str(PROGRAMS[part]), *placed]
        elif part == "promises":
            placed = [word.replace("3600", "15") for word in placed]
        commands[name] = placed
        self.own[name] = {
            key: place(text, self.folder, self.ports, name) for key, text in given.items()
        }

    def _make_database(self) -> None:
        # Its own user must reach it, through no private folder of pytest's.
        self.data = Path(tempfile.mkdtemp(prefix="privpipe-database-"))
        if os.geteuid() == 0:
            shutil.chown(self.data, "postgres")
        password = self.data.with_suffix(".password")
        password.touch(mode=0o600)
        password.write_text(self.secret)
        if os.geteuid() == 0:
            shutil.chown(password, "postgres")
        made = [f"{POSTGRES}/initdb", "-D", str(self.data), "-U", "prefect", "-A", "scram-sha-256"]
        subprocess.run(
            [*self._as_postgres(), *made, f"--pwfile={password}", "--no-sync"],
            check=True,
            capture_output=True,
            cwd="/",
        )
        password.unlink()
        url = f"prefect:{self.secret}@127.0.0.1:{self.ports['database']}/postgres"
        self.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = f"postgresql+asyncpg://{url}"

    def _as_postgres(self) -> list[str]:
        return ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []

    def _database_command(self) -> list[str]:
        where = ["-D", str(self.data), "-p", str(self.ports["database"])]
        sockets = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        return [*self._as_postgres(), f"{POSTGRES}/postgres", *where, *sockets]

    def start(self, *names: str) -> None:
        """Start processes and wait until they listen."""
        for name in names:
            log = open(self.folder / f"{name}.log", "ab")
            self.processes[name] = subprocess.Popen(
                self.commands[name],
                cwd="/" if name == "database" else self.folder,
                env=self.environment | self.own.get(name, {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            log.close()
            if name == "buckets":
                assert self.processes.pop(name).wait(120) == 0, "the buckets were not made"
            if name in self.ports:
                wait_for(f"{name} listens", lambda name=name: self._listens(name))
            if name == "server":
                wait_for("the server answers", self._is_healthy)

    def _listens(self, name: str) -> bool:
        assert self.processes[name].poll() is None, (self.folder / f"{name}.log").read_text()[-900:]
        try:
            socket.create_connection(("127.0.0.1", self.ports[name]), timeout=1).close()
        except OSError:
            return False
        return True

    def _is_healthy(self) -> bool:
        try:
            found = httpx.get(f"{self.api}/health", timeout=5, verify=self.trusting)
            return found.status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def kill(self, *names: str) -> None:
        """SIGKILL, with all that they started (but for runs, which have sessions of their own)."""
        for name in names:
            process = self.processes.pop(name)
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            # A database that is started beside what is left of it takes it for another one.
            wait_for(f"{name} is gone", lambda process=process: not _is_group(process.pid))

    def stop(self) -> None:
        """End all, runs that outlived their worker among them."""
        self.kill(*list(self.processes))
        for number in self._find_processes(f"PREFECT_HOME={self.folder}/prefect"):
            os.kill(number, signal.SIGKILL)
        if POSTGRES is not None:
            shutil.rmtree(self.data, ignore_errors=True)

    def command(self, *words: str) -> str:
        """What a command of privpipe says; AssertionError if it fails."""
        return self._call(["privpipe", *words])

    def _call(self, words: list[str]) -> str:
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
        return done.stdout + done.stderr

    def dump_database(self) -> str:
        """All that PostgreSQL holds, as text."""
        url = self.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"].replace("+asyncpg", "")
        done = subprocess.run(
            [f"{POSTGRES}/pg_dump", "--dbname", url], capture_output=True, text=True, check=True
        )
        return done.stdout

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """An answer of Prefect's server; asked again while it is not there."""

        def answer() -> tuple[Any] | None:
            try:
                found = httpx.request(
                    "GET" if body is None else "POST",
                    f"{self.api}{path}",
                    auth=("privpipe", self.secret),
                    json=None if body is None else dict(body),
                    timeout=20,
                    verify=self.trusting,
                )
            except httpx.HTTPError:
                return None
            return (found.json(),) if found.is_success else None

        return wait_for(f"answer to {path}", answer, 60)[0]

    def read_page(self, name: str) -> bytes:
        """A page of the scheduler, shown to who has a certificate where that is asked."""
        asked = "DASK_DISTRIBUTED__SCHEDULER__DASHBOARD__TLS__CERT" in self.own["scheduler"]
        url = f"http{'s' * asked}://127.0.0.1:{self.ports['dashboard']}/{name}"
        answer = httpx.get(url, timeout=30, verify=self.trusting)
        assert answer.status_code == httpx.codes.OK
        return answer.content

    def query(self, expression: str, **span: float) -> list[dict[str, Any]]:
        """Series of Prometheus by an expression, now or at the times of a span."""
        path = "query_range" if span else "query"
        url = f"http://127.0.0.1:{self.ports['prometheus']}/api/v1/{path}"
        try:
            found = httpx.get(url, params={"query": expression, **span}, timeout=10).json()
        except (httpx.HTTPError, ValueError):
            return []
        return list(found.get("data", {}).get("result", ()))

    def list_fired(self, since: float) -> set[tuple[str, str]]:
        """Alerts that fired since then, each with its run where it has one."""
        seconds = max(int(time.time() - since), 1)
        fired = self.query(f'last_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')
        return {(one["metric"]["alertname"], one["metric"].get("run", "")) for one in fired}

    def begin(self, config: str, at: str, deployment: str = "release") -> str:
        """Start a run of a deployment for a logical time; its identifier."""
        found = self.ask(f"/deployments/name/privpipe-release/{deployment}")
        parameters = {"config_path": config, "logical_time": at}
        run = self.ask(f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(run["id"])

    def state(self, run: str) -> tuple[str, str]:
        """Type and message of a run's state."""
        found = self.ask(f"/flow_runs/{run}")["state"]
        return str(found["type"]), str(found.get("message") or "")

    def wait_end(self, run: str, seconds: float = 180.0) -> tuple[str, str]:
        """State of a run once it has ended."""

        def ended() -> tuple[str, str] | None:
            state = self.state(run)
            return state if state[0] in ENDED else None

        found: tuple[str, str] = wait_for(f"end of the run {run}", ended, seconds)
        return found

    def cancel(self, run: str) -> None:
        self.ask(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}, "force": False})

    def find_driver(self, run: str) -> int:
        """Process number of a run that is under way."""
        found = self._find_processes(f"PREFECT__FLOW_RUN_ID={run}")
        assert found, "the run has no process"
        return found[0]

    def _find_processes(self, variable: str) -> list[int]:
        """Processes whose environment holds exactly this."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with suppress(OSError):
                    if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
        return found

    def describe(self) -> str:
        """Last lines of all logs, for who reads of a failure."""
        logs = sorted(self.folder.glob("*.log"))
        return json.dumps({log.stem: log.read_text()[-600:] for log in logs}, indent=1)
