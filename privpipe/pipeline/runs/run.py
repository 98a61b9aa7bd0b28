"""A run as a value: its options, what was found out before any work, and its identity."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, reduce
from importlib.metadata import version
from typing import Any

from platformdirs import user_cache_path

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.capabilities import UtilitySummary
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.cluster.workers.connection import ClusterOptions
from privpipe.errors import OptionError
from privpipe.fitted_schema import FittedSchema
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.protocols import Guarantee, Method
from privpipe.records.sampling import Split, make_split
from privpipe.records.schema import CollectionSchema
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.workspace import RunState, workspace_url
from privpipe.store.arrays.blocks import Receipt
from privpipe.store.arrays.layout import companion_url, exists, read_header
from privpipe.store.collections.collection import Collection
from privpipe.store.keyring.account import Account, find_account
from privpipe.store.keyring.registers import Attempt, share_level
from privpipe.store.keyring.sketches import Sketches
from privpipe.store.models import read_predictor
from privpipe.store.releases.release_writing import ReleasePlan


@dataclass(frozen=True)
class Run:
    """What the check stage hands to all others.

    Parameters
    ----------
    options
        The configuration.
    method
        The method's row of the table.
    collection, training
        Opened, with the variables they are read for; often the same.
    split
        Which training records are held out.
    state
        Identifier of the run and how far it has come; stored in the workspace.
    shared_model, shared_report
        Of a part of an incremental release: where the model and the report of its line are.
    attempt
        Which attempt at the gate this is; None before the audit.
    whole_audit
        Whether every attack runs, even where a leak is certain.
    """

    options: RunOptions
    method: Method
    collection: Collection
    training: Collection
    split: Split
    state: RunState
    shared_model: str | None = None
    shared_report: str | None = None
    attempt: Attempt | None = None
    whole_audit: bool = False

    @property
    def run_id(self) -> str:
        """8 hexadecimal digits; in every Dask key and receipt."""
        return self.state.run_id

    @property
    def may_withhold(self) -> bool:
        """Whether some records may keep their row but not be released."""
        method = self.options.method
        withholds = self.options.release.nonfinite == "withhold"
        limited = self.options.privacy.records_per_subject is not None
        return withholds or limited or getattr(method, "on_unrepresentable", "fail") == "withhold"

    @property
    def release_url(self) -> str:
        return self.options.release.path

    @property
    def work_model_url(self) -> str:
        """Where the model is until the release is published."""
        return join(workspace_url(self.release_url), "model.zarr")

    @property
    def checkpoints(self) -> Checkpoints:
        """Where sums and outcomes of attacks are checkpointed until the release is published."""
        return Checkpoints(join(workspace_url(self.release_url), "kept"))

    @property
    def sample_url(self) -> str:
        """Where the audit's samples and their key are until the release is published."""
        return join(workspace_url(self.release_url), "sample")

    @property
    def stored_model_url(self) -> str:
        """Where the model is now: in the workspace, or at its place if a run died publishing.

        For a part whose line has a model, the place of that one."""
        if self.shared_model is not None:
            return self.shared_model if exists(self.shared_model) else self.work_model_url
        # Publication moves the model first and the release last: of a run that died in between, a
        # digest is known and the workspace has no model any more.
        moved = self.state.model_digest is not None and not exists(self.work_model_url)
        return self.model_url if moved else self.work_model_url

    @property
    def model_url(self) -> str:
        """Where the model will be."""
        return self.shared_model or companion_url(self.release_url, "model.zarr")

    @property
    def report_url(self) -> str:
        """Folder of the report."""
        return self.shared_report or companion_url(self.release_url, "report")

    @property
    def trains_on_itself(self) -> bool:
        """Whether the released records are the training records."""
        return self.training.url == self.collection.url

    @property
    def fitted_schema(self) -> FittedSchema:
        """What the model knows by name of the records that it is trained on."""
        named = {one.name: one.column for one in self.training.schema_of_records.variables}
        included = [named[name] for name in self.options.release.include if name in named]
        return FittedSchema.of(self.training.schema, included)

    @property
    def sketches(self) -> Sketches:
        """Who the records are, whatever their file: beside the account."""
        return Sketches(find_account(self.options.privacy.account))

    def open_account(self) -> Account:
        """The account, which knows records again in whatever partition they are."""
        return Account(self.sketches.account).renew()

    def method_options(self) -> dict[str, Any]:
        """The method's options as the header shows them."""
        return dict(self.options.model_dump(mode="json", include={"method"})["method"])

    def read_files(self) -> dict[str, Any]:
        """The arrays of every file that the method's options name."""
        return {name: read_predictor(url) for name, url in self.options.method.files().items()}


def split_by_subject(options: RunOptions, training: Collection) -> Split:
    """The split of an audit: by subject where the training records say whose they are."""
    return make_split(options.audit.holdout, find_subject(options, training))


def find_subject(options: RunOptions, collection: Collection) -> str | None:
    """Variable that says whose each record is; None where none does."""
    known = (one.name for one in collection.schema_of_records.variables)
    return next((name for name in known if name == options.collection.subject), None)


@dataclass(frozen=True)
class Trained:
    """Receipt of the train stage: where the model is and what it promises.

    Parameters
    ----------
    model_digest
        SHA-256 of the fitted map.
    n_features_in, n_features_out
        Its shape.
    guarantee
        Its promise.
    reads
        What the map reads: "features", or "attributes", whose released codes are the release.
    draws
        Whether it draws at random and needs a release key.
    keeps_features
        Whether predictors of raw records apply to released ones.
    mean_record : (n_features,), optional
        Mean training record, when values that are not finite are imputed.
    n_records
        Of a surrogate release, which has its own; None where each record has its release.
    tile_rows
        Of a surrogate release that sums up all records: surrogates of one pass; None elsewhere.
    feature_names, response_names
        Columns of such a release.
    steps
        Of the releases of a collection that grows, whose loss is one: see `find_line`.
    """

    model_digest: str
    n_features_in: int
    n_features_out: int
    guarantee: Guarantee
    reads: str
    draws: bool
    keeps_features: bool
    mean_record: tuple[float, ...] | None = None
    n_records: int | None = None
    tile_rows: int | None = None
    feature_names: tuple[str, ...] = ()
    response_names: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cleaned:
    """Receipt of the clean stage: what was written, every byte proven.

    Parameters
    ----------
    plan
        What the release consists of.
    receipts
        Of every chunk.
    """

    plan: ReleasePlan
    receipts: Mapping[int, Receipt]

    @property
    def utility(self) -> UtilitySummary | None:
        """What cleaning cost all records; None where the map does not measure it."""
        found = [one.utility for one in self.receipts.values() if one.utility is not None]
        return reduce(UtilitySummary.merge, found) if found else None

    @property
    def n_withheld(self) -> int:
        """Rows that hold nothing."""
        return sum(one.withheld for one in self.receipts.values())

    @property
    def n_unseen(self) -> int | None:
        """Records released as their nearest known profile; None where a map knows no profiles."""
        found = [one.unseen for one in self.receipts.values() if one.unseen is not None]
        return sum(found) if found else None


def find_training(run: Run) -> str:
    """Digest of the records that the stored model was learned from: these, or earlier ones."""
    if not exists(run.stored_model_url):
        return run.training.digest
    header = read_header(run.stored_model_url, "model")
    return str(header.get("training_digest") or run.training.digest)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


MOST_RECORDS = 20_000
"""Records of each side that the attack on membership compares: every one with all of its sample."""

HOLDOUT = 0.5
"""Share held out where the default share is too few records to show anything."""

SHARED = ("max_records", "level", "uninformative")
"""Options of attacks that ``[audit]`` has by the same name."""


def find_attack_options(options: RunOptions, attempt: Attempt | None = None) -> AttackOptions:
    """How a release is attacked, and the limits it is held against.

    An attempt at the gate has its own seed and its share of the level. Without one, both are as
    they would be of the only attempt.
    """
    audit, gate = options.audit, options.gate
    # Where none is named no adversary is trained, and other attacks are as they are.
    named: dict[str, Any] = {"adversaries": audit.adversaries} if audit.adversaries else {}
    shared = {name: getattr(audit, name) for name in SHARED}
    if attempt is not None:
        # Whoever tries until a leak is found safe by chance pays for it: each attempt at the same
        # records has less of the level than the one before, and its draws are not to be chosen.
        shared |= {"seed": attempt.seed, "level": share_level(audit.level, attempt.number)}
    return AttackOptions(
        **named,
        **shared,
        max_advantage=gate.confidential_advantage_max,
        max_exposed=gate.exposed_max,
        must_find=gate.must_find,
    )


MOST_GROUPS = 64
"""Groups that are named: each is an audit of its own."""


def list_groups(options: RunOptions, schema: CollectionSchema) -> list[tuple[str, str, int]]:
    """Variable, category and code of each group that ``[about] groups`` names.

    Raises
    ------
    InputError, OptionError
        If there is no such variable, or it has no categories or too many.
    """
    names = [one.strip() for one in options.about.get("groups", "").split(",") if one.strip()]
    found = list[tuple[str, str, int]]()
    for name in names:
        categories = schema.variable(name).categories
        found += [(name, str(label), code) for code, label in enumerate(categories or ())]
        if categories is None or len(found) > MOST_GROUPS:
            raise OptionError(
                f"[about] groups names {name!r}, which makes {len(found)} groups; each is "
                f"audited by itself, and {MOST_GROUPS} at most.",
                remedy="Name variables with a few categories.",
            )
    return found


def cluster_options(options: RunOptions) -> ClusterOptions:
    """The ``[cluster]`` section as `privpipe.cluster` takes it.

    Scratch files are in the workspace, or in a folder of this machine named after a remote release.
    So the next run finds and removes what a killed one left.
    """
    workspace = local_path(workspace_url(options.release.path))
    if workspace is None:
        name = hashlib.sha256(shown(options.release.path).encode()).hexdigest()[:16]
        workspace = str(user_cache_path("privpipe", ensure_exists=True) / name)
        os.makedirs(workspace, mode=0o700, exist_ok=True)  # workers spill records there
    return ClusterOptions(**options.cluster.model_dump(), scratch=f"{workspace}/dask")


def list_versions() -> dict[str, str]:
    """Versions of what shapes a release."""
    return {name: _version(name) for name in ("privpipe", "numpy", "scipy", "zarr", "dask")}


_version = cache(version)  # each time the whole of a package's metadata is parsed
