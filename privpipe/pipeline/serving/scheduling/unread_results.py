"""What Prefect stored is never read back: its reader runs what the bytes say.

A server answers the state of a run, and a state may name a stored result: where, and that it is a
pickle. Our flows store none, so whatever is named is somebody else's.
"""

from __future__ import annotations

from typing import Any, NoReturn

from privpipe.errors import ClusterError


def refuse_stored_results() -> None:
    """From now on this process reads no result that Prefect names.

    For processes that run our flows alone: the command, and a deployed flow run.
    """
    # Classmethods both, and the only places where Prefect (3.8) makes an object of stored bytes.
    from prefect._internal.result_records import ResultRecord

    for name in ("deserialize", "deserialize_from_result_and_metadata"):
        if not callable(getattr(ResultRecord, name, None)):
            raise _refuse("Prefect reads stored results in another way than this version knows.")
        setattr(ResultRecord, name, classmethod(_refuse_reading))


def _refuse_reading(cls: type[Any], *args: Any, **kwargs: Any) -> NoReturn:
    raise _refuse("Prefect's server names a stored result of this run, and the run stored none.")


def _refuse(problem: str) -> ClusterError:
    return ClusterError(
        f"{problem} Nothing was read.",
        remedy="Look who answers at PREFECT_API_URL; if it is your server, install the versions of "
        "constraints.txt.",
        code="foreign-result",
    )
