"""The configuration: TOML in, one frozen value out; the environment overrides.

A method's options live beside the method; the ``[method]`` table is their union by `name`.
A key is overridden by ``PRIVPIPE_SECTION__KEY``, as ``PRIVPIPE_METHOD__UTILITY_BUDGET=0.02``.
"""

from __future__ import annotations

import functools
import operator
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from flows.toml_places import find_place
from privpipe.attacks.options import AdversaryName, AttackOptions
from privpipe.dist.apply import Nonfinite
from privpipe.errors import OptionError
from privpipe.records.schema import suggest
from privpipe.sanitizers import METHODS

__all__ = ["RunOptions", "read_options"]

_FROZEN = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class CollectionOptions(BaseModel):
    """``[collection]``: the records to sanitise."""

    model_config = _FROZEN
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


class TrainingOptions(BaseModel):
    """``[training]``: labelled records to learn from; the collection itself by default."""

    model_config = _FROZEN
    path: Annotated[str, Field(description="URL or local path of the training collection.")]


class ReleaseOptions(BaseModel):
    """``[release]``: where the release goes and what it holds beside the features."""

    model_config = _FROZEN
    path: Annotated[str, Field(description="URL or local path of the release; must not exist.")]
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
    layout: Annotated[
        Literal["dense", "factored"],
        Field(
            description="dense: records. factored: the few coordinates of each record and one "
            "basis, from which readers make the same records (null-space cleaning only)."
        ),
    ] = "dense"
    nonfinite: Annotated[
        Nonfinite,
        Field(
            description="Records with NaN or infinity: fail the run, withhold them (the row stays "
            "and holds nothing, `released` is 0), or impute the training mean."
        ),
    ] = "fail"


class ClusterSection(BaseModel):
    """``[cluster]``: workers of a local cluster, or the address of a running one."""

    model_config = _FROZEN
    workers: Annotated[int | None, Field(ge=1, description="Local worker processes.")] = None
    memory_limit: Annotated[str, Field(description='Memory per local worker, as "4GiB".')] = "auto"
    address: Annotated[
        str | None, Field(description="tls://host:port, or tcp:// on this machine.")
    ] = None
    dashboard: Annotated[
        str, Field(description="Address of a local cluster's dashboard (no login: loopback).")
    ] = "127.0.0.1:8787"
    wait_seconds: Annotated[
        float, Field(gt=0, description="How long to wait for the first worker.")
    ] = 60.0


class AuditOptions(BaseModel):
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
    adversaries: Annotated[
        tuple[AdversaryName, ...],
        Field(description="Who attacks a sample of the held-out records beside least squares."),
    ] = AttackOptions().adversaries
    max_records: Annotated[
        int, Field(ge=50, description="Different records that adversaries are given.")
    ] = 10_000


if TYPE_CHECKING:
    MethodOptions = Any
else:
    _KINDS = [method.options for method in METHODS.values()]
    MethodOptions = functools.reduce(operator.or_, _KINDS)
    if len(_KINDS) > 1:
        MethodOptions = Annotated[MethodOptions, Field(discriminator="name")]


class RunOptions(BaseSettings):
    """One run: check, train, clean, audit, publish."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        env_prefix="PRIVPIPE_",
        env_nested_delimiter="__",
    )
    collection: CollectionOptions
    training: TrainingOptions | None = None
    method: MethodOptions
    release: ReleaseOptions
    cluster: ClusterSection = ClusterSection()
    audit: AuditOptions = AuditOptions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment first, then the file."""
        return env_settings, init_settings

    @property
    def training_path(self) -> str:
        """Where the training records are."""
        return self.collection.path if self.training is None else self.training.path


def read_options(path: str) -> RunOptions:
    """Read a configuration file.

    Raises
    ------
    OptionError
        With file, line and column of every problem, and the closest known key; values that
        were given are never shown.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"{path} cannot be read ({type(error).__name__}).",
            remedy="Give the path of a TOML file.",
            code="config-file",
        ) from None
    try:
        return RunOptions(**_parse(text, path))
    except ValidationError as error:
        problems = [_describe(item, text, path) for item in error.errors(include_input=False)]
    raise OptionError("\n".join(problems), remedy="\nSee README.md for all keys.", code="config")


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(
            f"{path} is not valid TOML: {error}.", remedy="Mend that line.", code="config-syntax"
        ) from None


def _describe(item: Mapping[str, Any], text: str, path: str) -> str:
    """One problem as ``file:line:column: what``."""
    names = [str(part) for part in item["loc"] if not _is_tag(item["loc"], part)]
    place = find_place(text, names)
    where = f"{path}:{place[0]}:{place[1]}" if place else path
    shown = f"[{names[0]}] {'.'.join(names[1:])}" if len(names) > 1 else f"[{names[0]}]"
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: {shown} is not known{suggest(names[-1], _known(item['loc']))}"
    if item["type"] in ("missing", "missing_argument"):
        return f"{where}: {shown} is missing."
    if item["type"].startswith("union_tag"):
        allowed = ", ".join(METHODS)
        return f"{where}: [method] name is missing or not known; use one of: {allowed}."
    return f"{where}: {shown}: {item['msg']}."


def _is_tag(loc: Iterable[Any], part: Any) -> bool:
    """A union adds the method's name to the place of an error."""
    return tuple(loc)[:1] == ("method",) and part in METHODS


def _known(loc: tuple[Any, ...]) -> list[str]:
    """Keys allowed where an unknown one was found."""
    if len(loc) == 1:
        return list(RunOptions.model_fields)
    if loc[0] == "method":
        kinds = [METHODS[part] for part in loc if part in METHODS] or list(METHODS.values())
        return [item.name for kind in kinds for item in fields(kind.options)]
    section = RunOptions.model_fields[str(loc[0])].annotation
    models = [section, *getattr(section, "__args__", ())]
    return [name for model in models for name in getattr(model, "model_fields", ())]
