"""Filters of the user's own as a method: options, fit, and the map that is stored and released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, computed_field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.described import described, facts_of_map
from privpipe.errors import InputError, OptionError
from privpipe.option_values import FORBID, is_trusted, say_trusted, trust
from privpipe.protocols import (
    FloatArray,
    Guarantee,
    Method,
    RecordStream,
    Role,
    Shards,
    ShardSchema,
)
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.custom_code import FilterCode, Setting
from privpipe.sanitizers.minimax.custom_family import build_filter, check_filter, declare_family
from privpipe.sanitizers.minimax.family_training import FamilyOptions, fit_minimax_family
from privpipe.sanitizers.minimax.linear_filter import EMPIRICAL, check_records, promise_nothing
from privpipe.sanitizers.minimax.training.adversaries import check_adversaries
from privpipe.sanitizers.minimax.training.filter_widths import warn_of_outputs
from privpipe.sanitizers.minimax.training.labelled_moments import LABEL_STATISTICS
from privpipe.sanitizers.minimax.training.task_planning import check_tasks
from privpipe.sanitizers.names import by_name, keep_names

ROWS = 1024
"""Records filtered at once: a filter may need many times their memory."""


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class MinimaxCustomOptions(FamilyOptions):
    """Options of ``[method] name = "minimax_own"``."""

    name: Literal["minimax_own"] = "minimax_own"
    filter: Annotated[
        str,
        Field(
            min_length=1,
            description="Class of the filter: start, apply and vjp, or a torch.nn.Module. Without "
            "module: name of an entry point privpipe.filters.",
        ),
    ]
    module: Annotated[
        str | None,
        Field(description="Python file of the class. It is run, here and on the workers."),
    ] = None
    settings: Annotated[
        dict[str, Setting],
        Field(description="Keyword arguments of the class, beside the number of features."),
    ] = Field(default_factory=dict)
    sha256: Annotated[
        str | None, Field(description="Hash that the file must have; any other content is refused.")
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        code = FilterCode.read(self.filter, self.module)
        if self.sha256 is not None and self.sha256 != code.sha256:
            raise OptionError(
                f"the file of the filter has the SHA-256 {code.sha256}, not the one of sha256.",
                remedy="Restore the file, or read it and change sha256.",
                code="filter-changed",
            )
        object.__setattr__(self, "_code", code)  # read once: what is checked is what is trained

    @property
    def code(self) -> FilterCode:
        """The code of the filter, as it was when the options were made."""
        found: FilterCode = self._code  # type: ignore[attr-defined]
        return found

    @computed_field  # type: ignore[prop-decorator]
    @property
    def code_sha256(self) -> str:
        """Hash of the file: part of what a run, a model and a release are of."""
        return self.code.sha256


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class CustomFilter:
    """Maps records by a trained filter of the user's own.

    The map holds the code, and runs it only where it is trusted: where a configuration names the
    same file, on the workers of such a run, and after `privpipe.trust_filter`.

    Parameters
    ----------
    filter
        Class or entry point.
    source, sha256
        Text of its module (empty for an entry point) and hash of it.
    settings
        Names and values of what the class is made with.
    n_features_in, n_features_out
        Shape.
    parameter_names
        Of `parameters`.
    parameters
        Trained arrays, each of the shape that the filter's `start` gave it.
    stopped, history, history_columns, task_names, baselines
        As of `MinimaxFilter`.
    """

    kind: ClassVar[str] = "own_filter"
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = False

    filter: str
    source: str
    sha256: str
    settings: tuple[tuple[str, Setting], ...]
    n_features_in: int
    n_features_out: int
    parameter_names: tuple[str, ...]
    parameters: tuple[FloatArray, ...]
    stopped: str
    history: FloatArray
    history_columns: tuple[str, ...]
    task_names: tuple[str, ...]
    baselines: FloatArray

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; see `promise_nothing`."""
        return promise_nothing("minimax")

    def trust(self) -> None:
        """Let its code run in this process."""
        trust(self.sha256)

    def apply(self, x: npt.ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Filter records, (n_records, n_features_in); see `LinearFilter.apply`.

        Raises
        ------
        OptionError
            If its code is not trusted, or the installed code is not what it was trained with.
        InputError
            If records do not fit, or what comes out of the filter is not finite.
        """
        if not is_trusted(self.sha256):
            raise OptionError(
                f"This model runs code of its own, the class {self.filter} of a file with the "
                f"SHA-256 {self.sha256}, which is not trusted here.{say_trusted()}",
                remedy="Read that file (the model's `source` is its text, as it was trained with), "
                "then: privpipe.trust_filter('the_file.py').",
                code="filter-untrusted",
            )
        records, dtype = check_records(by_name(self, x), self.n_features_in)
        code = FilterCode(self.filter, self.source, self.sha256)
        declared = build_filter(code, self.settings, self.n_features_in)
        arrays = dict(zip(self.parameter_names, self.parameters, strict=True))
        z = np.empty((len(records), self.n_features_out))
        for first in range(0, len(records), ROWS):
            rows = slice(first, first + ROWS)
            z[rows] = declared.apply(arrays, records[rows])
        if bad := int(np.count_nonzero(~np.isfinite(z).all(axis=1))):
            raise InputError(
                f"The filter {self.filter} gives values that are not finite for {bad} of "
                f"{len(z)} records.",
                remedy="Train it on records like these, or bound what it computes.",
                code="filter-nonfinite",
            )
        return z.astype(dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trusted": is_trusted(self.sha256)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("_trusted"):  # a pickle runs code anyway
            trust(state["sha256"])
        self.__dict__.update(state)


@keep_names
def fit_minimax_custom_filter(shards: Shards, options: MinimaxCustomOptions) -> CustomFilter:
    """Train a filter of one's own: keep the target tasks and spoil the private ones.

    Returns
    -------
    CustomFilter
        The iterate of the best held-out Phi, with the history of the fit.

    Raises
    ------
    OptionError
        If the class is not a filter, its vjp is wrong, or options contradict the data.
    InputError
        If labels or features cannot be used.
    ConvergenceError
        If an inner problem cannot be solved.

    Notes
    -----
    Guarantee: none for single records. Phi is not convex; the result depends on the start.

    References
    ----------
    Hamm, JMLR 2017, section 4: any filter with a derivative by its parameters.
    """
    check_shards(shards)
    check_custom_filter(options, shards.schema)
    family, start = declare_family(
        options.code, options.settings, shards.schema.n_features, options.seed
    )
    fit = fit_minimax_family(shards, family, start, options)
    arrays = family.split(fit.parameters)
    return CustomFilter(
        filter=options.filter,
        source=options.code.source,
        sha256=options.code.sha256,
        settings=family.settings,
        n_features_in=family.n_features_in,
        n_features_out=family.n_features_out,
        parameter_names=family.names,
        **(vars(fit) | {"parameters": tuple(arrays.values())}),
    )


def check_custom_filter(options: MinimaxCustomOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if tasks do not suit records, or the class is no filter.

    The class is looked at where its code is trusted alone.
    """
    check_tasks(options, schema)
    check_adversaries(options, schema)
    if not is_trusted(options.code.sha256):  # a configuration that one only looks at
        return
    family, start = declare_family(options.code, options.settings, schema.n_features, options.seed)
    check_filter(family, start)
    warn_of_outputs(family.n_features_out, schema.n_features)
    options.check_loss(schema, family.n_features_out)


METHODS = (
    Method(
        name="minimax_own",
        options=MinimaxCustomOptions,
        releases="rows",
        fit=fit_minimax_custom_filter,
        source="A filter of one's own; Hamm 2017, Minimax Filter, JMLR 18, section 4",
        maps=(CustomFilter,),
        check=check_custom_filter,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
)
