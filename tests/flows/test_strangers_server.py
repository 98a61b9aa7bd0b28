"""Whoever listens where Prefect's server should: another user who was faster, or a lying server."""

from __future__ import annotations

import base64
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.results import ResultRecord

from privpipe.cluster.workers import certificates
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.errors import OptionError
from privpipe.pipeline.operations.prefect_server import check_server, end_servers, serve
from tests.flows.digits_runs import own_prefect
from tests.flows.test_pipeline import configure
from tests.standard import write_standard

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the user: needs root")

LISTEN = """
import os, socket, sys, time
os.setgid(65534); os.setuid(65534)
taken = socket.create_server(("127.0.0.1", 0))
print(taken.getsockname()[1], flush=True)
taken.settimeout(60)
try:
    print(taken.accept()[0].recv(1000), flush=True)
except OSError:
    pass
"""

RACE = """
import os, re, socket, sys, time
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print("ready", flush=True)
taken, won, seen = [], 0, set()
end = time.monotonic() + 120
while time.monotonic() < end and os.getppid() != 1:
    for line in open("/proc/net/tcp").readlines()[1:]:
        fields = line.split()
        port = int(fields[1].rpartition(":")[2], 16)
        if fields[3] == "0A" and port >= 1024:
            for reuse in (False, True):  # with and without sharing the port
                try:
                    own = socket.socket()
                    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if reuse:
                        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    own.bind(("127.0.0.1", port)); own.listen()
                    own.settimeout(0); taken.append(own); print("won", port, flush=True)
                except OSError:
                    own.close()
"""

LYING = Path(__file__).with_name("lying_server.py")


@pytest.fixture
def stranger() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A port at which another user listens, and the process."""
    process = subprocess.Popen([sys.executable, "-c", LISTEN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield int(process.stdout.readline()), process
    process.kill()
    process.communicate()


@needs_root
def test_guard_address__refuses_a_port_of_another_user(
    stranger: tuple[int, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, _ = stranger
    assert certificates.find_owners(port) == {NOBODY}
    settings = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    with pytest.raises(OptionError, match="belongs to another user"):
        check_server(settings)
    with (
        pytest.raises(OptionError, match="belongs to another user"),
        connect(ClusterOptions(address=f"tcp://127.0.0.1:{port}", wait_seconds=5)),
    ):
        pass
    check_server({"PREFECT_API_URL": f"https://127.0.0.1:{port}/api"})  # the certificate decides
    monkeypatch.setenv(certificates.TRUSTED, str(NOBODY))
    assert check_server(settings)


CONNECT = """
import socket, sys
from privpipe.cluster.workers.certificates import guard_address
from privpipe.errors import OptionError
port = int(sys.argv[1])
own = socket.create_server(("127.0.0.1", port))
guard_address(f"http://127.0.0.1:{port}/api")
socket.create_connection(("127.0.0.1", port)).close()  # ours is up
own.close()
input("down\\n")
try:
    socket.create_connection(("127.0.0.1", port)).send(b"password")
except OptionError as error:
    print(error.code)
"""


@needs_root
def test_guard_address__looks_again_before_each_connection() -> None:
    """The server was ours when the run began, went down, and somebody else came."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = subprocess.Popen(
        [sys.executable, "-c", CONNECT, str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.readline() == "down\n"
    taking = LISTEN.replace("0))", f"{port}))")
    other = subprocess.Popen([sys.executable, "-c", taking], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None
        assert int(other.stdout.readline()) == port
        said, _ = run.communicate("go\n", timeout=60)
        assert said.strip() == "foreign-server"
    finally:
        other.kill()
        assert "password" not in other.communicate()[0]


@needs_root
@pytest.mark.slow
def test_serve__another_user_wins_no_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefect_home: None
) -> None:
    """Tries to bind every port that listens, all the while; the server is reached all the same."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    race = subprocess.Popen([sys.executable, "-c", RACE], stdout=subprocess.PIPE, text=True)
    assert race.stdout is not None
    assert race.stdout.readline() == "ready\n"
    try:
        _, url, authority, _ = serve(120)
        port = int(url.removesuffix("/api").rpartition(":")[2])
        owners = certificates.find_owners(port)
        keys = list(authority.parent.glob("*.key"))
    finally:
        race.kill()  # before the server ends: whatever is closed is free
        won = race.communicate()[0].split()
    end_servers()
    assert owners == {os.geteuid()}
    assert not keys
    assert str(port) not in won  # others may be those of other tests, which ended meanwhile


class Gift:
    """What runs when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


@pytest.mark.slow
def test_refuse_stored_results__nothing_that_a_server_names_is_unpickled(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from privpipe.pipeline.operations.prefect_server import refuse_stored_results\n"
        "from prefect.results import ResultRecord\n"
        "refuse_stored_results()\n"
        "ResultRecord.deserialize(open(sys.argv[1], 'rb').read())\n"
    )
    gift = tmp_path / "gift"
    record = ResultRecord(
        metadata={"serializer": {"type": "pickle"}, "storage_key": "gift"}, result=None
    )
    blob = pickle.dumps(Gift(tmp_path / "ran"))
    text = base64.encodebytes(blob).decode()
    gift.write_text(
        record.model_copy(update={"result": text}).model_dump_json(serialize_as_any=True)
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(gift)], capture_output=True, text=True, check=False
    )
    assert "foreign-result" in done.stderr or "stored none" in done.stderr
    assert not (tmp_path / "ran").exists()
    usual = code.replace("refuse_stored_results()\n", "pass\n", 1)  # what Prefect would do
    usual = usual.replace("import refuse_stored_results", "import ClusterError", 1)
    subprocess.run([sys.executable, "-c", usual, str(gift)], capture_output=True, check=False)
    assert (tmp_path / "ran").exists()


RUN = """
import os, sys
import dask.delayed  # unpickles operators of its own when it is imported
unpickled = []
def hook(event, arguments):
    if event == "pickle.find_class":
        unpickled.append(arguments[0])
sys.addaudithook(hook)
from privpipe.pipeline.operations.prefect_server import prepare_prefect
prepare_prefect()
from privpipe.pipeline.operations.prefect_server import ephemeral_server
from privpipe.errors import ClusterError
with ephemeral_server():
    from prefect import flow
    @flow(persist_result=False)
    def work():
        return 1
    try:
        print("returned", work())
    except ClusterError as error:
        print("refused", error.code)
print("unpickled", len(unpickled), sorted(set(unpickled)))
"""


@pytest.mark.slow
def test_own_server__a_server_that_answers_with_a_stored_result_is_refused(tmp_path: Path) -> None:
    """A lying server, in front of a real one, calls the run completed and names a pickle."""
    environment = own_prefect(str(tmp_path / "prefect"))
    lying = subprocess.Popen(
        [sys.executable, str(LYING), str(tmp_path)],
        env=environment, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert lying.stdout is not None
        url = lying.stdout.readline().strip()
        done = subprocess.run(
            [sys.executable, "-c", RUN], env=environment | {"PREFECT_API_URL": url},
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert "refused foreign-result" in done.stdout, done.stdout + done.stderr
        assert "unpickled 0 []" in done.stdout
        assert not (tmp_path / "ran").exists()
    finally:
        lying.terminate()
        lying.communicate(timeout=30)


WHOLE = """
import sys, traceback
OWN = ("/distributed/", "/dask/tokenize.py")  # the workers' protocol; dask's own functions
def hook(event, arguments):
    if event == "pickle.find_class":
        files = [frame.filename for frame in traceback.extract_stack()]
        if not any(own in file for file in files for own in OWN):
            print("unpickled", arguments, files[-4:], file=sys.stderr)
if __name__ == "__main__":  # a worker imports it too
    sys.addaudithook(hook)
    if sys.argv.pop() == "planted":
        import pickle
        pickle.loads(pickle.dumps(print))
    from privpipe.command import main
    main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_run__unpickles_nothing_but_what_its_workers_send(tmp_path: Path, planted: bool) -> None:
    """The whole command with server, scheduler and worker; the hook sees what is planted."""
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=40)
    config = Path(configure(tmp_path, cluster="workers = 1"))
    config.write_text(config.read_text() + "[gate]\nenforce = false\n")
    (tmp_path / "whole.py").write_text(WHOLE)
    command = [str(tmp_path / "whole.py"), *(["--version"] if planted else ["run", str(config)])]
    done = subprocess.run(
        [sys.executable, *command, "planted" if planted else "not"],
        env=own_prefect(str(tmp_path / "prefect")),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("unpickled" in done.stderr) is planted, done.stderr
    assert planted or (tmp_path / "release.zarr" / "zarr.json").exists()
