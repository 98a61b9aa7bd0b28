"""The boundary on real workers: only sealed errors leave, logs are silent, files are private."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import dask
import pytest
from distributed import Client

from privpipe.cluster.executors.boundary import run_sealed, seal
from privpipe.cluster.workers.connection import ClusterOptions, check_address, connect
from privpipe.errors import (
    ClusterError,
    InputError,
    MemoryBudgetError,
    OptionError,
    PrivpipeError,
    StoreError,
)

RECORD = "6151.2345678"


def fail_with_record(values: list[str]) -> None:
    record = values[0]
    try:
        raise KeyError(record)
    except KeyError as error:
        raise ValueError(f"cannot handle {record}") from error


def fail_with_ours() -> None:
    try:
        raise ValueError(RECORD)
    except ValueError as error:
        raise InputError("3 values are missing.", remedy="Drop them.", code="nan") from error


def write_private(path: str) -> int:
    Path(path).write_text("records")
    return stat.S_IMODE(os.stat(path).st_mode)


def catch(function, *args: object) -> PrivpipeError:
    with pytest.raises(PrivpipeError) as caught:
        run_sealed(function, *args)
    return caught.value


def test_run_sealed__hands_results_through():
    assert run_sealed(max, [1, 3, 2]) == 3


def test_run_sealed__keeps_type_and_place_and_drops_text_context_and_cause():
    error = catch(fail_with_record, [RECORD])
    assert (type(error), error.exit_code) == (PrivpipeError, 7)
    assert "ValueError at test_boundary.py:" in error.message
    assert RECORD not in repr(error) + str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


def test_run_sealed__keeps_our_own_errors_without_their_cause():
    error = catch(fail_with_ours)
    assert (type(error), error.code, error.remedy) == (InputError, "nan", "Drop them.")
    assert error.__cause__ is None
    assert error.__context__ is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_seal__tells_a_full_disk(number: int):
    error = seal(OSError(number, RECORD), "clean_chunks")
    assert isinstance(error, StoreError)
    assert error.code == "disk-full"
    assert RECORD not in str(error)


def test_seal__tells_that_memory_ran_out():
    assert isinstance(seal(MemoryError(RECORD), "clean_chunks"), MemoryBudgetError)


@pytest.mark.slow
def test_run_sealed__on_a_worker_leaves_nothing_in_error_or_logs(client: Client):
    values = client.scatter([RECORD, RECORD], hash=False)
    future = client.submit(run_sealed, fail_with_record, [values], key="fail-sealed", pure=False)
    error = future.exception()
    assert type(error) is PrivpipeError
    assert error.__context__ is None
    assert error.__cause__ is None
    seen = repr(client.get_worker_logs()) + repr(client.get_scheduler_logs())
    seen += repr(client.get_worker_logs(nanny=True)) + repr(error)
    assert "fail-sealed" in seen  # the worker did log the failure
    assert RECORD not in seen


@pytest.mark.slow
def test_connect__workers_write_private_files(client: Client, tmp_path: Path):
    paths = [str(tmp_path / f"{i}.txt") for i in range(4)]
    assert client.gather(client.map(write_private, paths, pure=False)) == [0o600] * 4
    folders = client.run(lambda dask_worker: dask_worker.local_directory)
    modes = [stat.S_IMODE(Path(folder).parent.parent.stat().st_mode) for folder in folders.values()]
    assert all(not mode & 0o077 for mode in modes)


@pytest.mark.slow
def test_connect__empties_its_scratch_folder_at_start_and_end(tmp_path: Path):
    scratch = tmp_path / "dask"
    scratch.mkdir(mode=0o755)
    (scratch / "left").mkdir()
    (scratch / "left" / "spilled").write_text(RECORD)
    options = ClusterOptions(workers=1, dashboard="127.0.0.1:0", scratch=str(scratch))
    with connect(options) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        assert not (scratch / "left").exists()
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
        assert list(scratch.iterdir())
    assert not scratch.exists()


@pytest.mark.parametrize(
    "address",
    ["tcp://10.0.0.7:8786", "tcp://scheduler.example:8786", "tcp://0.0.0.0:1", "ws://127.0.0.1:1",
     "10.0.0.7:8786", "ucx://127.0.0.1:8786", "tcp://127.0.0.1.example:8786"],
)  # fmt: skip
def test_connect__refuses_an_open_scheduler(address: str):
    with (
        pytest.raises(OptionError, match="without TLS") as caught,
        connect(ClusterOptions(address=address)),
    ):
        pass
    assert caught.value.code == "insecure-cluster"


@pytest.mark.parametrize("address", ["tls://10.0.0.7:8786", "tcp://127.0.0.1:1", "tcp://[::1]:1"])
def test_check_address__takes_tls_and_this_machine(address: str):
    check_address(address)


@pytest.mark.slow
def test_connect__reaches_a_running_scheduler_of_this_machine(client: Client):
    certificate = {
        "ca-file": client.security.tls_ca_file,
        "client.cert": client.security.tls_client_cert,
        "client.key": client.security.tls_client_key,
    }
    settings = {f"distributed.comm.tls.{name}": value for name, value in certificate.items()}
    with (
        dask.config.set(settings),
        connect(ClusterOptions(address=client.scheduler.address)) as second,
    ):
        assert second.submit(sum, [1, 2], pure=False).result() == 3


def test_connect__says_that_nobody_answers():
    options = ClusterOptions(address="tcp://127.0.0.1:9", wait_seconds=1)
    with pytest.raises(ClusterError, match="cannot be reached") as caught, connect(options):
        pass
    assert caught.value.code == "unreachable"
