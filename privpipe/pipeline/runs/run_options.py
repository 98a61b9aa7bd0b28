"""The configuration as one frozen value: its sections, their keys, what each may be.

A method's options live beside the method; the ``[method]`` table is their union by `name`.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dask.utils import parse_bytes
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from privpipe.attacks.adversaries.attack_options import AdversaryName, AttackOptions, ScoreName
from privpipe.cluster.passes.cleaning_pass import Nonfinite
from privpipe.option_values import take_plain
from privpipe.sanitizers import METHODS

LEAST_MEMORY = 2**28
"""Least memory of a worker, bytes: below it nothing but its libraries fits."""

_FROZEN = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Section(BaseModel):
    """What all sections share: flags and numbers are no texts, as in the options of methods."""

    model_config = _FROZEN

    @field_validator("*", mode="before")
    @classmethod
    def _take_plain(cls, value: Any, info: ValidationInfo) -> Any:
        return take_plain(cls.model_fields[str(info.field_name)].annotation, value)


class CollectionOptions(Section):
    """``[collection]``: the records to sanitise."""

    path: Annotated[str, Field(description="URL or local path of the collection.")]
    desired: Annotated[
        tuple[str, ...], Field(description="Variables whose prediction must keep working.")
    ] = ()
    confidential: Annotated[
        tuple[str, ...], Field(description="Variables whose prediction must fail.")
    ] = ()
    weights: Annotated[
        str | None,
        Field(
            description="Numeric variable of the training records: how often each counts in the "
            "fit (null-space cleaning and LEACE). The audit counts every record once."
        ),
    ] = None
    standardise: Annotated[
        bool,
        Field(
            description="Learn from, and clean, features less their mean, in standard deviations, "
            "both of the training records; stored with the model, so that records to come are "
            "standardised likewise. For filters, which depend on the units of the features; the "
            "other methods do not, or standardise by themselves."
        ),
    ] = False


class TrainingOptions(Section):
    """``[training]``: labelled records to learn from; the collection itself by default."""

    path: Annotated[str, Field(description="URL or local path of the training collection.")]
    public: Annotated[
        bool,
        Field(
            description="true says that these records are public, so that what is learned from "
            "them is outside every promise of privacy. Local differential privacy needs it."
        ),
    ] = False


class ReleaseOptions(Section):
    """``[release]``: where the release goes and what it holds beside the features."""

    path: Annotated[
        str,
        Field(
            description="URL or local path of the release; must not exist. {logical_time} stands "
            "for the time that a scheduled run is for, or that of --time."
        ),
    ]
    include: Annotated[
        tuple[str, ...],
        Field(description="Further variables to release by name; a confidential one is refused."),
    ] = ()
    partitions: Annotated[
        bool,
        Field(
            description="Tell how many records each partition of the source has, so that `export` "
            "can write a file for each. Names of partitions are not released; which records "
            "stood together is, and may tell what they were partitioned by."
        ),
    ] = False
    anew: Annotated[
        bool,
        Field(
            description="Learn a model of its own although an earlier release has one that was "
            "learned from nearly the same records. By default that one is used again: the "
            "difference of two models tells of the few records that only one of them saw. "
            "Counted as weaker."
        ),
    ] = False
    layout: Annotated[
        Literal["dense", "factored"],
        Field(
            description="dense: records. factored: the few coordinates of each record and one "
            "basis, from which readers make records, equal to the dense ones up to rounding "
            "(null-space cleaning only)."
        ),
    ] = "dense"
    incremental: Annotated[
        bool,
        Field(
            description="The release grows with its collection (`privpipe append`): generations of "
            "parts, one per partition, made by one model that is trained and judged once."
        ),
    ] = False
    nonfinite: Annotated[
        Nonfinite,
        Field(
            description="Records with NaN or infinity: fail the run, withhold them (the row stays "
            "and holds nothing, `released` is 0), or impute the training mean."
        ),
    ] = "fail"


class ClusterSection(Section):
    """``[cluster]``: workers of a local cluster, or the address of a running one."""

    workers: Annotated[
        int | None,
        Field(ge=0, description="Local worker processes; 0 does all work in this process."),
    ] = None
    memory_limit: Annotated[str, Field(description='Memory per local worker, as "4GiB".')] = "auto"
    address: Annotated[
        str | None, Field(description="tls://host:port, or tcp:// on this machine.")
    ] = None
    dashboard: Annotated[
        str,
        Field(
            description="host:port of a local cluster's dashboard on this machine, "
            "https://host:port with certificates of Dask's configuration, or off."
        ),
    ] = "127.0.0.1:8787"
    performance_report: Annotated[
        str | None,
        Field(
            description="File for Dask's report of the run (tasks, memory, profiles without source "
            "code), one HTML page that loads nothing. Not set: none."
        ),
    ] = None

    @field_validator("memory_limit")
    @classmethod
    def _is_memory(cls, text: str) -> str:
        if text == "auto":
            return text
        try:
            size = parse_bytes(text)
        except (ValueError, OverflowError):
            size = -1
        if not LEAST_MEMORY <= size < 2**63:
            raise ValueError(
                f'give "auto", or a size of at least {LEAST_MEMORY // 2**20} MiB, as "4GiB": a '
                "worker that has loaded its libraries holds about 200 MiB"
            )
        return text

    @field_validator("dashboard")
    @classmethod
    def _is_place(cls, text: str) -> str:
        host, _, port = text.removeprefix("https://").rpartition(":")
        is_place = host and port.isdecimal() and 0 <= int(port) < 2**16 and " " not in host
        if not is_place and text != "off":
            raise ValueError(
                'give HOST:PORT, as "127.0.0.1:8787", where port 0 takes a free one; '
                'https://HOST:PORT; or "off"'
            )
        return text


class AuditOptions(Section):
    """``[audit]``: which labelled training records are held out to judge the release."""

    model_config = _FROZEN
    holdout: Annotated[
        float,
        Field(ge=0, lt=1, description="Share of the training records never seen by the fit."),
    ] = 0.1
    group: Annotated[
        str | None,
        Field(description="Variable whose equal values stay on one side (subject, original)."),
    ] = None
    adversaries: tuple[AdversaryName, ...] = Field(
        default_factory=lambda: AttackOptions().adversaries,
        description="Who attacks a sample of the held-out records beside least squares.",
    )
    max_records: Annotated[int, Field(ge=50, description="Records that adversaries are given.")] = (
        AttackOptions().max_records
    )
    level: Annotated[
        float,
        Field(
            gt=0,
            lt=1,
            description="Confidence of all verdicts together; attempts at a release of the same "
            "records share it.",
        ),
    ] = AttackOptions().level
    decides: Annotated[
        tuple[ScoreName, ...],
        Field(
            min_length=1,
            description="Scores of classes that are held against the limits of [gate]; of a number "
            "R squared always is, and of these the true-positive rates.",
        ),
    ] = AttackOptions().decides
    uninformative: Annotated[
        tuple[str, ...],
        Field(
            description="Confidential variables that the raw records do not tell. Of any other "
            '"safe" needs the raw records to tell more than chance to the same adversaries: of '
            "labels joined to the wrong records everything would be safe."
        ),
    ] = ()
    max_seconds: Annotated[
        float | None,
        Field(
            gt=0,
            description="Of one attack: an adversary that has not chosen its settings by then is "
            "unknown, and the gate stays closed. None: no limit.",
        ),
    ] = None
    earlier: Annotated[
        tuple[str, ...],
        Field(
            description="Earlier releases of these records, or of some of them, paths or URLs: who "
            "holds them joins them with this one record by record, and the verdict counts what "
            "that tells. Those that the register beside the account knows of need no line, unless "
            "they were moved."
        ),
    ] = ()
    disowned: Annotated[
        tuple[str, ...],
        Field(
            description="Earlier releases, by run or place, of which nobody has a copy: they are "
            "not joined, and do not keep the gate closed though they cannot be read. Printed, and "
            "counted as weaker."
        ),
    ] = ()
    unreachable: Annotated[
        Literal["refuse", "report"],
        Field(
            description="Earlier releases that the register knows and that cannot be read: refuse "
            "keeps the gate closed and names them; report prints them as warnings, and is counted "
            "as weaker."
        ),
    ] = "refuse"
    vouched: Annotated[
        tuple[str, ...],
        Field(
            description="With [training], of released records without labels: what nobody judges "
            "and you answer for. Included variables by name, order, partitions, withheld. Every "
            "page names them."
        ),
    ] = ()
    coefficients: Annotated[
        bool,
        Field(
            description="Print the coefficients of a surrogate release beside those of the raw "
            "records. The first are released anyhow; the second are then published with the audit."
        ),
    ] = False

    @model_validator(mode="before")
    @classmethod
    def _has_no_seed(cls, given: Any) -> Any:
        if isinstance(given, dict) and "seed" in given:
            raise ValueError(
                "seed is no option any more: it is a hash of what is released, so that no seed can "
                "be tried until a leak is found safe. Delete the line"
            )
        return given

    @field_validator("decides", "earlier", "disowned", "adversaries", "uninformative", "vouched")
    @classmethod
    def _are_distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("name each once")
        return names


AttackKindName = Literal[
    "linkage", "reconstruction", "training_membership", "membership", "information", "drift"
]
"""Kinds of attack beside inference that a run measures, where the release allows it."""


class PrivacySection(Section):
    """``[privacy]``: what every promise of differential privacy is charged to."""

    subject: Annotated[
        str | None,
        Field(
            description="Variable that names a record's subject: a person with several records "
            "loses epsilon once for each. Not set: the promise is about single records."
        ),
    ] = None
    records_per_subject: Annotated[
        int | None,
        Field(
            ge=1,
            description="Records of one subject that are released at most; further ones are "
            "withheld, in the order of the collection. Not set: as many as there are.",
        ),
    ] = None
    account: Annotated[
        str | None,
        Field(
            description="Folder or URL of the account of losses, by content of the partitions, and "
            "of the register of releases. Not set: PRIVPIPE_ACCOUNT, or a folder in the user's "
            "data folder."
        ),
    ] = None
    limit: Annotated[
        float | None,
        Field(
            gt=0,
            allow_inf_nan=False,
            description="Largest sum of epsilons that any partition may lose. Not set: no limit.",
        ),
    ] = None
    ephemeral: Annotated[
        Literal["refuse", "accept"],
        Field(
            description="Where a method with differential privacy finds its account or the keys of "
            "its draws in memory or in a container's own layer: refuse ends the run before "
            "anything is written; accept lets it be forgotten, and counts as weaker."
        ),
    ] = "refuse"


Limit = Annotated[float, Field(ge=0, le=1)]


class GateSection(Section):
    """``[gate]``: what the audit must show before a release is published; unknown never passes."""

    enforce: Annotated[
        bool,
        Field(
            description='false publishes whatever the audit finds, and writes "not gated" into '
            "the release and its report."
        ),
    ] = True
    confidential_advantage_max: Annotated[
        Limit,
        Field(
            description="Largest advantage (0 is guessing, 1 is knowing) that any adversary may "
            "gain on a confidential variable beyond knowing the wanted answer: 0.1 is a tenth of "
            "the way from guessing to knowing. The upper confidence limit counts."
        ),
    ] = AttackOptions().max_advantage
    exposed_max: Annotated[
        Limit,
        Field(
            description="Largest share of records whose confidential value may be claimed rightly "
            "at .1 % and 1 % false alarms, beyond those and beyond knowing the wanted answer."
        ),
    ] = AttackOptions().max_exposed
    single_records: Annotated[
        Literal["protected", "unprotected"],
        Field(
            description="Of surrogates that carry exact coefficients: whoever knows all other "
            "records solves for the one that is left, and whoever has a release with and one "
            "without a record solves for that record. unprotected accepts it by name; without "
            "that the gate stays closed, whatever the attacks find."
        ),
    ] = "protected"
    utility_loss_max: Annotated[
        Limit | None,
        Field(
            description="Largest loss of accuracy or R squared of any wanted prediction, from raw "
            "to released records. Not set: no limit."
        ),
    ] = None
    linkage_max: Annotated[
        Limit | None,
        Field(
            description="Largest share of records whose release may be found by who has the raw "
            "record, beyond chance. Not set: no limit."
        ),
    ] = None
    require: Annotated[
        tuple[AttackKindName, ...],
        Field(description="Kinds of attack that must have been measured beside inference."),
    ] = ()
    must_find: Annotated[
        float,
        Field(
            gt=0,
            le=1,
            description="Share of records of which a planted leak must be found by the audit; "
            'without that power no verdict is "safe".',
        ),
    ] = AttackOptions().must_find
    drift_max: Annotated[
        float | None,
        Field(
            ge=0,
            description="Largest difference of any feature's mean between a new partition of an "
            "incremental release and the training records, in standard deviations; the upper "
            "limit counts. Not set: no limit.",
        ),
    ] = 0.5
    previous: Annotated[
        str | None,
        Field(description="An earlier release of these variables to compare with, path or URL."),
    ] = None
    regression_max: Annotated[
        Limit,
        Field(
            description="How much more than of the previous release an adversary may gain on any "
            "variable (upper limits)."
        ),
    ] = 0.05


if TYPE_CHECKING:
    MethodOptions = Any
else:
    _KINDS = [method.options for method in METHODS.values()]
    MethodOptions = functools.reduce(operator.or_, _KINDS)
    if len(_KINDS) > 1:
        MethodOptions = Annotated[MethodOptions, Field(discriminator="name")]


class CompareEntry(Section):
    """``[[compare]]``: a method that `privpipe compare` holds against others."""

    label: Annotated[
        str, Field(max_length=80, description="What the table calls it; default: the method.")
    ] = ""
    method: MethodOptions


class RunOptions(BaseModel):
    """One run: check, train, clean, audit, gate, publish."""

    model_config = _FROZEN
    collection: CollectionOptions
    training: TrainingOptions | None = None
    method: MethodOptions
    release: ReleaseOptions
    privacy: PrivacySection = PrivacySection()
    cluster: ClusterSection = ClusterSection()
    audit: AuditOptions = AuditOptions()
    gate: GateSection = GateSection()
    compare: tuple[CompareEntry, ...] = ()

    @property
    def training_path(self) -> str:
        """Where the training records are."""
        return self.collection.path if self.training is None else self.training.path
