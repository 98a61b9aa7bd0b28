"""Operations: the generation switch, and opening a release of many parts.

Ratios of processor time within one run. The other figures of operations (a TLS cluster against a
local one, memory of scheduler and workers, the start on a warm cluster, the cost of metrics, an
increment against the whole) are not measured yet.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from privpipe.store.access.generation_log import publish_generation, read_newest
from privpipe.store.releases.incremental_release import IncrementalState, Part
from privpipe.store.releases.published import open_release


def measure(work: Callable[[], object], times: int = 7) -> float:
    """Least processor time of a few calls, seconds."""
    spent = []
    for _ in range(times):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return min(spent)


def make_release(folder: Path, n_parts: int) -> str:
    """A generation that names so many parts; opening asks for none of them."""
    url = str(folder / f"release{n_parts}.zarr")
    parts = tuple(Part(f"{n:032x}", f"{n:032x}", 500, 0, "0" * 64) for n in range(n_parts))
    array = {"name": "features", "dtype": "float64", "columns": 64, "attributes": {}}
    state = IncrementalState("0" * 64, {"method": "null_space"}, (array,), 500, parts)
    publish_generation(url, "release", state.encode(), None)
    return url


def run(small: bool = False) -> list[tuple[str, float, str, str, float, float]]:
    """Rows of the table: opening (at most 3), the switch (constant)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        few, many = (make_release(folder, n) for n in (10, 1000))
        ten = measure(lambda: open_release(few))
        thousand = measure(lambda: open_release(many))
        url = str(folder / "line")

        def switch() -> None:
            publish_generation(url, "release", {"parts": []}, read_newest(url, "release"))

        early = measure(switch, 20)
        for _ in range(50 if small else 500):
            switch()
        late = measure(switch, 20)
    return [
        ("open 1,000 parts", thousand, "s", "10 parts", ten, thousand / ten),
        ("switch after many", late, "s", "the first", early, late / early),
    ]
