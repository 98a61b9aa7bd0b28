"""Custom filters as a method: options, fit, and the map that is stored and released.

A class of the user's becomes a family that the minimax objective is taken over, and then a map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import prod
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
from pydantic import Field, computed_field

from privpipe.described import record_map
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax.filters import Pullback
from privpipe.option_values import is_trusted, trust
from privpipe.protocols import FloatArray, Shards, ShardSchema
from privpipe.sanitizers.minimax.linear_filter import HAMM, FeatureFilter, TrainingRecord
from privpipe.sanitizers.minimax.neural_minimax import FamilyOptions, train_family
from privpipe.sanitizers.minimax.training import custom_code
from privpipe.sanitizers.minimax.training.tasks import warn_of_outputs
from privpipe.sanitizers.options import method_options

ROWS = 1024
"""Records filtered at once: a filter may need many times their memory."""

Arrays = Mapping[str, FloatArray]
"""Parameters of a filter, or a gradient by them: arrays by name."""


class DeclaredFilter(Protocol):
    """What a custom filter must have; ``Class(n_features, **settings)`` makes it.

    Records are rows, of float64. Nothing is drawn in `apply`, and no record changes what becomes of
    another: a release is made in chunks.
    """

    n_outputs: int
    """Features released."""

    def start(self, rng: np.random.Generator) -> Arrays:
        """Parameters to begin with, by name; what is drawn comes from `rng`."""
        ...

    def apply(self, parameters: Arrays, x: FloatArray) -> FloatArray:
        """Filter (n_records, n_features) to (n_records, n_outputs)."""
        ...

    def vjp(self, parameters: Arrays, x: FloatArray, dz: FloatArray) -> Arrays:
        """Gradient of ``sum(dz * apply(parameters, x))`` by each of the parameters."""
        ...


@lru_cache(maxsize=8)
def build_filter(
    code: custom_code.CustomCode, settings: custom_code.Settings, n_features: int
) -> DeclaredFilter:
    """Make the filter of a declared class, once per process; modules of torch are wrapped."""
    kind: Any = code.load()
    names = {f"{base.__module__}.{base.__name__}" for base in kind.mro()}
    if "torch.nn.modules.module.Module" in names:  # found without importing torch, an extra
        from privpipe.sanitizers.minimax.torch_filter import TorchFilter

        kind = partial(TorchFilter, kind)
    else:
        code.load("start", "apply", "vjp")
    return cast(DeclaredFilter, code.call("__init__", kind, n_features, **dict(settings)))


@dataclass(frozen=True, eq=False)
class CustomFamily:
    """The filters that a declared class makes, their parameters one flat vector.

    Parameters
    ----------
    code, settings, n_features_in
        What the class is, and what it is made with.
    n_features_out
        Features released.
    names, shapes
        Of its parameters, in the order of the vector.
    """

    code: custom_code.CustomCode
    settings: custom_code.Settings
    n_features_in: int
    n_features_out: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def n_parameters(self) -> int:
        return sum(map(prod, self.shapes))

    @property
    def filter(self) -> DeclaredFilter:
        """The filter; made once per process."""
        return build_filter(self.code, self.settings, self.n_features_in)

    def split(self, parameters: FloatArray) -> dict[str, FloatArray]:
        """The arrays of a flat vector, by name; copies, which a filter may spoil."""
        parts = np.split(parameters, np.cumsum(list(map(prod, self.shapes)))[:-1])
        named = zip(self.names, parts, self.shapes, strict=True)
        return {name: part.reshape(shape).copy() for name, part, shape in named}

    def join(self, arrays: Arrays) -> FloatArray:
        """The flat vector of arrays by name."""
        return np.concatenate([np.asarray(arrays[name], np.float64).ravel() for name in self.names])

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records; see `DifferentiableFilter.map_records`."""
        arrays, declared, call = self.split(parameters), self.filter, self.code.call_on_records
        z = _apply(self.code, declared, arrays, x)
        return z, lambda dz: self.join(call("vjp", declared.vjp, arrays, x, dz))


def _apply(
    code: custom_code.CustomCode, declared: DeclaredFilter, arrays: Arrays, records: FloatArray
) -> FloatArray:
    z = np.asarray(code.call_on_records("apply", declared.apply, arrays, records), np.float64)
    if bad := int(np.count_nonzero(~np.isfinite(z).all(axis=1))):
        problem = f"The filter {code.name} is not finite for {bad} of {len(z)} records."
        remedy = "Train it on records like these, or bound what it computes."
        raise InputError(problem, remedy=remedy, code="filter-nonfinite")
    return z


def declare_family(
    options: MinimaxCustomOptions, n_features: int
) -> tuple[CustomFamily, FloatArray]:
    """The family of a declared class for records of so many features, and where it starts.

    Raises
    ------
    OptionError
        If the class cannot be made, or does not say its parameters and outputs.
    """
    code, given = options.code, tuple(sorted(options.settings.items()))
    declared = build_filter(code, given, n_features)
    arrays = code.call("start", declared.start, np.random.default_rng(options.seed))
    start = {str(name): np.asarray(array, np.float64) for name, array in dict(arrays).items()}
    if not start or not all(np.isfinite(array).all() for array in start.values()):
        problem = f"{code.name}.start gives no parameters, or some that are not finite."
        remedy = "Return a dict of finite arrays by name."
        raise OptionError(problem, remedy=remedy, code="filter-class")
    n_outputs = getattr(declared, "n_outputs", None)
    if not isinstance(n_outputs, int | np.integer) or n_outputs < 1:
        problem = f"{code.name} does not say how many features it releases."
        remedy = "Set self.n_outputs to a positive number in __init__."
        raise OptionError(problem, remedy=remedy, code="filter-class")
    shapes = tuple(array.shape for array in start.values())
    family = CustomFamily(code, given, n_features, int(n_outputs), tuple(start), shapes)
    return family, family.join(start)


def check_family(family: CustomFamily, start: FloatArray) -> None:
    """Refuse a filter that cannot be released in chunks, or whose vjp is not its derivative.

    Raises
    ------
    OptionError
        See `check_rows` and `check_derivative`: the vjp is compared by each of the parameters.
    """
    rng, code, declared = np.random.default_rng(0), family.code, family.filter
    x = rng.standard_normal((custom_code.N_DRAWN, family.n_features_in))
    # Away from the start, where a derivative may vanish; the sizes of the parameters stay.
    near = {
        name: value
        + 0.1 * max(custom_code.measure_size(value), 0.1) * rng.standard_normal(value.shape)
        for name, value in family.split(start).items()
    }
    shape = custom_code.N_DRAWN, family.n_features_out
    custom_code.check_rows(code, "apply", lambda x: (declared.apply(near, x),), (x,), (shape,))
    dz = rng.standard_normal(shape)
    given = dict(code.call("vjp", declared.vjp, near, x, dz))
    slopes: dict[str, FloatArray] = {k: np.asarray(v, np.float64) for k, v in given.items()}
    expected, found = ({k: v.shape for k, v in part.items()} for part in (near, slopes))
    if found != expected:
        problem = f"{code.name}.vjp gives arrays of the shapes {found}, not {expected}."
        raise code.refuse(problem, "Return a dict with the gradient by each of the parameters.")
    custom_code.check_finite(code, "vjp", tuple(slopes.values()))

    def add_up(value: FloatArray, *, name: str) -> FloatArray:
        return np.asarray((dz * code.call("apply", declared.apply, near | {name: value}, x)).sum())

    for name, slope in slopes.items():
        custom_code.check_derivative(
            code, f"vjp by {name!r}", partial(add_up, name=name), near[name], slope, rng
        )


@method_options
class MinimaxCustomOptions(FamilyOptions):
    """Options of ``[method] name = "minimax_own"``."""

    source: ClassVar[str] = f"A custom filter; {HAMM}, section 4"
    name: Literal["minimax_own"] = "minimax_own"
    filter: str = Field(min_length=1)
    """Class of the filter: start, apply and vjp, or a torch.nn.Module. Without module: name of an
    entry point privpipe.filters."""
    module: str | None = None
    """Python file of the class. It is run, here and on the workers."""
    settings: dict[str, custom_code.Setting] = Field(default_factory=dict)
    """Keyword arguments of the class, besides the number of features."""
    sha256: str | None = None
    """Hash that the file must have; any other content is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.code  # read once: what is checked is trained, whatever becomes of the file

    @cached_property
    def code(self) -> custom_code.CustomCode:
        """The code of the filter, as it was when the options were made."""
        return custom_code.CustomCode.read(self.filter, self.module, pinned=self.sha256)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def code_sha256(self) -> str:
        """Hash of the file: part of what a run, a model and a release are of."""
        return self.code.sha256

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError or InputError if tasks do not suit records, or the class is no filter.

        The class is looked at where its code is trusted alone.
        """
        super().check(schema)
        if not is_trusted(self.code.sha256):  # a configuration that one only looks at
            return
        family, start = declare_family(self, schema.n_features)
        check_family(family, start)
        warn_of_outputs(family.n_features_out, schema.n_features)
        self.try_loss(schema, family.n_features_out)


@record_map
class CustomFilter(TrainingRecord, custom_code.PickledTrust, FeatureFilter):
    """Maps records by a trained custom filter.

    The map holds the code, and runs it only where it is trusted. That is where a configuration
    names the same file, on the workers of such a run, and after `privpipe.trust_filter`.

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
        As of `TrainingRecord`.
    """

    kind: ClassVar[str] = "own_filter"

    filter: str
    source: str
    sha256: str
    settings: custom_code.Settings
    n_features_in: int
    n_features_out: int
    parameter_names: tuple[str, ...]
    parameters: tuple[FloatArray, ...]

    def trust(self) -> None:
        """Let its code run in this process."""
        trust(self.sha256)

    def map_records(self, records: FloatArray) -> FloatArray:
        """Filtered records.

        Raises
        ------
        OptionError
            If its code is not trusted, or the installed code is not what it was trained with.
        InputError
            If what comes out of the filter is not finite.
        """
        code = custom_code.CustomCode(self.filter, self.source, self.sha256)
        code.require_trust()
        declared = build_filter(code, self.settings, self.n_features_in)
        arrays = dict(zip(self.parameter_names, self.parameters, strict=True))
        z = np.empty((len(records), self.n_features_out))
        for first in range(0, len(records), ROWS):
            rows = slice(first, first + ROWS)
            # Block by block: a convolution's windows take many times a record's memory.
            z[rows] = _apply(code, declared, arrays, records[rows])
        return z


@keep_names
def fit_minimax_custom_filter(shards: Shards, options: MinimaxCustomOptions) -> CustomFilter:
    """Train a custom filter: preserve the target tasks and spoil the private ones.

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
    _, tasks = options.measure_tasks(shards)
    family, start = declare_family(options, shards.schema.n_features)
    fit = train_family(shards, tasks, family, start, options)
    return CustomFilter(
        filter=options.filter,
        source=options.code.source,
        sha256=options.code.sha256,
        settings=family.settings,
        n_features_in=family.n_features_in,
        n_features_out=family.n_features_out,
        parameter_names=family.names,
        **(vars(fit) | {"parameters": tuple(family.split(fit.parameters).values())}),
    )
