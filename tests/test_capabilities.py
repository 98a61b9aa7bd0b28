"""No room above the sanitizers names a method: maps have capabilities, methods are rows."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from privpipe.capabilities import UtilitySummary
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.cleaning_pass import CleaningJob, clean_collection
from privpipe.cluster.passes.loaded_map import release_records
from privpipe.protocols import FloatArray, Guarantee, RecordStream, Role
from privpipe.sanitizers import METHODS, RECORD_MAPS
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.arrays.layout import FEATURES, ArrayPlan
from privpipe.store.collections.collection import open_collection
from privpipe.store.models import write_model
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release
from tests.standard import write_standard

ROOT = Path(__file__).parent.parent

TABLES = {
    "privpipe.sanitizers": {"METHODS", "RECORD_MAPS", "STATISTICS"},
    "privpipe.sanitizers.arrays": {"ChangedShards"},  # records as any map has changed them
    "privpipe.sanitizers.chain": {  # around any method
        "fit_standardised",
        "without_standardiser",
    },
    "privpipe.sanitizers.grounds": {"read_grounds", "refuse_dependent"},  # sentences
    "privpipe.sanitizers.ladder": {"LAST", "identify", "list_ladder"},  # what to try, in order
}
SHARED = {f"privpipe.sanitizers.{room}" for room in ("names", "options")}


def list_sources() -> Iterator[Path]:
    """Modules of the floors above the store, but for those of the demo."""
    for floor in ("cluster", "command", "flows", "pipeline"):
        for path in sorted(ROOT.glob(f"privpipe/{floor}/**/*.py")):
            if not path.name.startswith("demo"):
                yield path


def find_imports(tree: ast.AST) -> Iterator[str]:
    """What is imported of the sanitizers beyond the tables and the shared rooms."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("privpipe.sanitizers"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "privpipe.sanitizers"
        ):
            room = node.module or ""
            allowed = TABLES.get(room, set())
            if room not in SHARED:
                found = {a.name for a in node.names} - allowed
                tables = {name for name in found if f"{room}.{name}" in TABLES}
                yield from (f"{room}.{name}" for name in sorted(found - tables))
                yield from (said for name in tables for said in _find_used(tree, room, name))


def _find_used(tree: ast.AST, room: str, name: str) -> Iterator[str]:
    """What is used of a module of tables that is imported whole, and is none of its tables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == name and node.attr not in TABLES[f"{room}.{name}"]:
                yield f"{room}.{name}.{node.attr}"


def find_names(tree: ast.AST) -> Iterator[str]:
    """Names of methods, and of the kinds and classes of their maps, said anywhere in code."""
    own = {*METHODS, *RECORD_MAPS, *(each.__name__ for each in RECORD_MAPS.values())}
    own -= {"chain"}  # an English word, and no method's
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in own:
            yield str(node.value)
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in own:
                yield name


def test_sources__no_module_of_cluster_or_flows_names_a_method() -> None:
    found = {
        str(path.relative_to(ROOT)): [*find_imports(tree), *find_names(tree)]
        for path in list_sources()
        for tree in [ast.parse(path.read_text())]
    }
    assert len(found) > 60
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from privpipe.sanitizers.null_space.linear_cleaner import LinearCleaner",
        "import privpipe.sanitizers.mapping",
        "from privpipe.sanitizers import mapping",
        'is_mapping = method == "privacy_mapping"',
    ],
)
def test_sources__the_search_finds_what_it_forbids(line: str) -> None:
    tree = ast.parse(line)
    assert [*find_imports(tree), *find_names(tree)]


@dataclass(frozen=True, eq=False)
class Halver:
    """A map of no family: it halves, says what that cost, and readers double again."""

    kind: ClassVar[str] = "halver"
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = Guarantee("none", None, "", "every record", "")

    n_features: int

    @property
    def n_features_in(self) -> int:
        return self.n_features

    @property
    def n_features_out(self) -> int:
        return self.n_features

    def apply(self, x: Any, stream: RecordStream | None = None) -> FloatArray:
        halved: FloatArray = np.asarray(x) / 2
        return halved

    def apply_measured(
        self, x: Any, stream: RecordStream | None = None, *, overwrite_x: bool = False
    ) -> tuple[FloatArray, UtilitySummary]:
        return self.apply(x), UtilitySummary(len(x), 0, 3.0 * len(x), 3.0, 0)

    def reconstruct(self, coordinates: Any) -> FloatArray:
        doubled: FloatArray = np.asarray(coordinates) * 2
        return doubled


def test_cleaning__takes_what_a_map_of_no_family_can_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECORD_MAPS, "halver", Halver)
    source, model = str(tmp_path / "records.zarr"), str(tmp_path / "model.zarr")
    schema = write_standard(source, 50, chunk_rows=20)
    n = schema.n_features
    plan = ReleasePlan(
        "50000001",
        str(tmp_path / "release.zarr"),
        (ArrayPlan(FEATURES, (50, n), schema.chunk_rows, "float64"),),
    )
    prepare_release(plan)
    digest = write_model(Halver(n), model)
    receipts: list[Receipt] = []
    clean_collection(
        Executor(), CleaningJob(open_collection(source), plan, model, digest), receipts.extend
    )
    costs = [receipt.utility for receipt in receipts]
    assert [cost.total for cost in costs if cost is not None] == [60.0, 60.0, 30.0]
    rows = np.arange(2.0 * n).reshape(2, n)
    assert np.array_equal(release_records(Halver(n), rows), rows)
