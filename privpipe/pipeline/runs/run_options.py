"""The configuration as one frozen value: its sections, their keys, what each may be.

A method's options live beside the method; the ``[method]`` table is their union by `name`.
"""

import functools
import hashlib
import json
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dask.utils import parse_bytes
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from privpipe.attacks.adversaries.attack_options import AdversaryName, AttackOptions
from privpipe.cluster.passes.cleaning_pass import Nonfinite
from privpipe.option_values import DescribedBelow, take_plain
from privpipe.records.schema import suggest
from privpipe.report.audit_text import ABOUT, LONGEST_ENTRY
from privpipe.sanitizers import METHODS

LEAST_MEMORY = 2**28
"""Least memory of a worker, bytes: below it nothing but its libraries fits."""

# Inputs stay out of errors, which are logged: a value may say something of the records.
_FROZEN = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Section(DescribedBelow, BaseModel):
    """What all sections share: flags and numbers are no texts, as in the options of methods."""

    model_config = _FROZEN

    # Pydantic alone would take the text "1" for a number, and the number 1 for true.
    @field_validator("*", mode="before")
    @classmethod
    def _take_plain(cls, value: Any, info: ValidationInfo) -> Any:
        return take_plain(cls.model_fields[str(info.field_name)].annotation, value)


class CollectionSection(Section):
    """``[collection]``: the records to sanitise."""

    path: Annotated[str, Field(min_length=1)]
    """URL or local path of the collection."""
    desired: tuple[str, ...] = ()
    """Variables whose prediction must keep working."""
    confidential: tuple[str, ...] = ()
    """Variables whose prediction must fail."""
    weights: str | None = None
    """Numeric variable of the training records: how often each counts in the fit (null-space
    cleaning and LEACE). The audit counts every record once."""
    subject: str | None = None
    """Variable that says whose a record is: a person, a device, the original of repeats. One name
    is one subject in all collections of an account. All records of a subject are on one side of the
    split, count as one in intervals, and consume epsilon once each. Not set: each record is of
    another."""
    standardise: bool = False
    """Learn from, and clean, features less their mean, in standard deviations, both of the training
    records. They are stored with the model, so that records to come are standardised likewise. For
    filters, which depend on the units of the features; the other methods do not, or standardise by
    themselves."""


class TrainingSection(Section):
    """``[training]``: labelled records to learn from; the collection itself by default."""

    path: str
    """URL or local path of the training collection."""
    public: bool = False
    """true says that these records are public, so that what is learned from them is outside every
    promise of privacy. Local differential privacy needs it."""


class ReleaseSection(Section):
    """``[release]``: where the release goes and what it holds beside the features."""

    # Braces of another name would be one place for all times.
    path: Annotated[str, Field(pattern=r"^([^{]|\{logical_time\})+$")]
    """URL or local path of the release; must not exist. {logical_time} is filled with the time
    that a scheduled run is for, or that of --time."""
    include: tuple[str, ...] = ()
    """Further variables to release by name; a confidential one is refused."""
    partitions: bool = False
    """Publish how many records each partition of the source has, so that `export` writes a file for
    each. Names of partitions are not released; which records stood together is, and may
    reveal what they were partitioned by."""
    layout: Literal["dense", "factored"] = "dense"
    """dense: records. factored: the few coordinates of each record and one basis, from which
    readers make records (null-space cleaning only). These equal the dense ones up to rounding."""
    incremental: bool = False
    """The release grows with its collection (`privpipe append`): generations of parts, one per
    partition, made by one model that is trained and judged once."""
    nonfinite: Nonfinite = "fail"
    """Records with NaN or infinity: fail the run, withhold them (the row stays and holds nothing,
    `released` is 0), or impute the training mean. Fits and audits see them so."""


class ClusterSection(Section):
    """``[cluster]``: workers here, workers that another system starts, or a running cluster."""

    kind: Literal["local", "slurm", "kubernetes", "gateway", "coiled"] = "local"
    """Who starts the workers; all but local by their own library and its section of Dask's
    configuration (queue, memory, image)."""
    workers: Annotated[int | None, Field(ge=0, le=100_000)] = None
    """Worker processes; 0 does all work in this process."""
    memory_limit: str = "auto"
    """Memory per local worker, as "4GiB"."""
    address: str | None = None
    """tls://host:port, or tcp:// on this machine."""
    dashboard: str = "127.0.0.1:8787"
    """host:port of a local cluster's dashboard on this machine, https://host:port with certificates
    of Dask's configuration, or off."""

    @field_validator("memory_limit")
    @classmethod
    def _is_memory(cls, text: str) -> str:
        try:
            size = parse_bytes(text)
        except (ValueError, OverflowError):
            size = -1
        if text != "auto" and not LEAST_MEMORY <= size < 2**63:
            raise ValueError(
                f'give "auto", or a size of at least {LEAST_MEMORY // 2**20} MiB, as "4GiB": a '
                "worker that has loaded its libraries holds about 200 MiB"
            )
        return text


class AuditSection(Section):
    """``[audit]``: which labelled training records are held out to judge the release."""

    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the training records never seen by the fit."""
    adversaries: tuple[AdversaryName, ...] = AttackOptions().adversaries
    """Who attacks a sample of the held-out records beside least squares."""
    max_records: Annotated[int, Field(ge=50)] = AttackOptions().max_records
    """Records that adversaries are given."""
    level: Annotated[float, Field(gt=0, lt=1)] = AttackOptions().level
    """Confidence of all verdicts together; attempts at a release of the same records share it."""
    uninformative: tuple[str, ...] = ()
    """Confidential variables that the raw records do not reveal. Of any other "safe" needs the raw
    records to reveal more than chance to the same adversaries. Of labels joined to the wrong
    records everything would be safe."""
    earlier: tuple[str, ...] = ()
    """Earlier releases of these records, or of some of them, paths or URLs. Who holds them joins
    them with this one record by record, and the verdict counts what that reveals. Those that the
    register beside the account knows of need no line, unless they were moved."""
    disowned: tuple[str, ...] = ()
    """Earlier releases, by run or place, of which no one has a copy, or which are of other people
    with equal records. They are not joined, and do not keep the gate closed. Printed, and counted
    as weaker."""
    vouched: tuple[str, ...] = ()
    """With [training], of released records without labels: what you answer for, as no attack does.
    Included variables by name, order, partitions, withheld; earlier: which records an earlier
    release of the same model holds, too. Every page names them."""

    @field_validator("earlier", "disowned", "adversaries", "uninformative", "vouched")
    @classmethod
    def _are_distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("name each once")
        return names


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class PrivacySection(Section):
    """``[privacy]``: what every promise of differential privacy is charged to."""

    records_per_subject: Annotated[int | None, Field(ge=1)] = None
    """Records of one subject that are released at most; further ones are withheld, in the order of
    the collection. Not set: as many as there are."""
    account: str | None = None
    """Folder or URL of the account of losses, by content of the partitions, and of the register of
    releases. Not set: PRIVPIPE_ACCOUNT, or a folder in the user's data folder."""
    limit: _Positive | tuple[_Positive, Annotated[float, Field(gt=0, lt=1)]] | None = None
    """Largest epsilon that any partition may lose; or the largest epsilon and delta, as
    [3.0, 1e-5]. With a delta, many losses count by what they are together, where that is less than
    their sum. Not set: no limit of epsilon, and the delta of one release."""
    ephemeral: Literal["refuse", "accept"] = "refuse"
    """For a method with differential privacy whose account or keys of draws are in memory or in a
    container's own layer. refuse ends the run before anything is written. accept lets them be
    forgotten, and counts as weaker."""

    @property
    def most_epsilon(self) -> float | None:
        """Largest sum of epsilons."""
        return self.limit[0] if isinstance(self.limit, tuple) else self.limit

    @property
    def most_delta(self) -> float | None:
        """Largest sum of deltas, where one was decided on."""
        return self.limit[1] if isinstance(self.limit, tuple) else None


Limit = Annotated[float, Field(ge=0, le=1)]


class GateSection(Section):
    """``[gate]``: what the audit must show before a release is published; unknown never passes."""

    enforce: bool = True
    """false publishes whatever the audit finds, and writes "not gated" into the release and its
    report."""
    confidential_advantage_max: Limit = AttackOptions().max_advantage
    """Largest advantage (0 is guessing, 1 is knowing) that any adversary may gain on a confidential
    variable beyond knowing the target. 0.1 is a tenth of the way from guessing to knowing. The
    upper confidence limit counts."""
    exposed_max: Limit = AttackOptions().max_exposed
    """Largest share of records whose confidential value may be claimed rightly at .1 % and 1 %
    false alarms, beyond those and beyond knowing the target."""
    single_records: Literal["protected", "unprotected"] = "protected"
    """Of surrogates that carry exact coefficients. Whoever knows all other records solves for the
    one that is left. Whoever has a release with and one without a record solves for that record.
    unprotected accepts it by name; without that the gate stays closed, whatever the attacks
    find."""
    utility_loss_max: Limit | None = None
    """Largest loss of accuracy or R squared of any target prediction, from raw to released records.
    Not set: no limit."""
    must_find: Annotated[float, Field(gt=0, le=1)] = AttackOptions().must_find
    """Share of records of which a planted leak must be found by the audit; without that power no
    verdict is "safe"."""
    drift_max: Annotated[float | None, Field(ge=0)] = 0.5
    """Largest difference of any feature's mean between a new partition of an incremental release
    and the training records, in standard deviations; the upper limit counts. Not set: no limit."""


# A union that is made at run time cannot be read by mypy.
if TYPE_CHECKING:
    MethodOptions = Any
else:
    _KINDS = [method.options for method in METHODS.values()]
    MethodOptions = Annotated[functools.reduce(operator.or_, _KINDS), Field(discriminator="name")]


class CompareEntry(Section):
    """``[[compare]]``: a method that `privpipe compare` holds against others."""

    label: Annotated[str, Field(max_length=80)] = ""
    """What the table calls it; default: the method."""
    method: MethodOptions


class RunOptions(DescribedBelow, BaseModel):
    """One run: check, train, clean, audit, gate, publish."""

    model_config = _FROZEN
    collection: CollectionSection
    training: TrainingSection | None = None
    method: MethodOptions
    release: ReleaseSection
    privacy: PrivacySection = PrivacySection()
    cluster: ClusterSection = ClusterSection()
    audit: AuditSection = AuditSection()
    gate: GateSection = GateSection()
    compare: tuple[CompareEntry, ...] = ()
    about: dict[str, str] = {}
    """What only the controller knows, for the officer's page."""

    @field_validator("about")
    @classmethod
    def _are_entries(cls, entries: dict[str, str]) -> dict[str, str]:
        if unknown := sorted(set(entries) - set(ABOUT)):
            near = suggest(unknown[0], ABOUT)
            raise ValueError(f"{unknown[0]} is not known{near}; use: {', '.join(ABOUT)}")
        if long := [name for name, text in entries.items() if len(text) > LONGEST_ENTRY]:
            raise ValueError(f"{long[0]} has more than {LONGEST_ENTRY} letters")
        return entries

    @property
    def training_path(self) -> str:
        """Where the training records are."""
        return self.collection.path if self.training is None else self.training.path

    @property
    def vouchable(self) -> tuple[str, ...]:
        """What ``[audit] vouched`` may name."""
        return (*self.release.include, "order", "partitions", "withheld", "earlier")

    def change(self, section: str, **keys: Any) -> "RunOptions":
        """The same with other values of some keys of a section, which are not validated again."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=keys)})

    @property
    def counts_subjects(self) -> bool:
        """Whether it matters how many records a subject has."""
        return self.method.consumes() is not None or self.privacy.records_per_subject is not None

    def name_subject(self) -> dict[str, dict[str, Any]]:
        """The split and the subject, for digests, where versions with two keys had them."""
        subject = self.collection.subject
        audit = {"holdout": self.audit.holdout, "group": subject}
        return {"audit": audit, "privacy": {"subject": subject if self.counts_subjects else None}}

    def digest(self) -> str:
        """SHA-256 of everything in the configuration that can change the released records.

        How they are judged is no part of it: a corrected limit resumes the run that failed.
        Which records the fit does not see is, and so is whose model is not used again.
        """
        judging = dict.fromkeys(("gate", "audit", "compare", "about"), True)
        # Of a release that is disowned no model is used again: another is learned.
        more = {"disowned": json.dumps(self.audit.disowned)} if self.audit.disowned else {}
        return self.digest_without(judging | {"privacy": {"account", "limit", "ephemeral"}}, **more)

    def digest_without(self, left_out: Mapping[str, Any], **more: str) -> str:
        """SHA-256 of the configuration without some of it, and of what else is given."""
        # A key that came after the first release of a version is left out at its default, so that a
        # run that an older version began has the digest that it had then.
        late = {"subject"} if self.collection.standardise else {"subject", "standardise"}
        less = {**left_out, "cluster": True, "collection": late | left_out.get("collection", set())}
        content = self.model_dump(mode="json", exclude=less)
        for section, keys in self.name_subject().items():
            content[section] = content.get(section, {}) | keys
        return hashlib.sha256(json.dumps(content | more, sort_keys=True).encode()).hexdigest()
