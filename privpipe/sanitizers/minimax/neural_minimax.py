"""Minimax filters that are not linear: any differentiable family, and the paper's sigmoid network.

Hamm, JMLR 2017, section 4 and Minimax 2. The objective is the same as for linear filters; training
stops on held-out records. The network starts small on whitened features.
"""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, computed_field
from scipy.special import expit

from privpipe.described import record_map
from privpipe.errors import OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.minimax import filters
from privpipe.numerics.minimax.descent import descend_quasi_newton
from privpipe.numerics.minimax.spectra import whiten
from privpipe.protocols import FloatArray, IntArray, Shards, ShardSchema
from privpipe.sanitizers.minimax.linear_filter import HAMM, FeatureFilter, TrainingRecord
from privpipe.sanitizers.minimax.training import custom_code
from privpipe.sanitizers.minimax.training.adversary_rounds import FilterTraining, descend_in_rounds
from privpipe.sanitizers.minimax.training.tasks import Positive, Task, warn_of_outputs
from privpipe.sanitizers.options import method_options

WHITENING = 1.0
"""Ridge of the whitening, relative to the mean eigenvalue: weak directions stay weak."""
# Networks overfit after 20 to 100 iterations; held-out Phi may rise for a few before it falls
# again.
EARLY_STOPPING = 8
"""Iterations without a better held-out Phi before a fit stops."""


@method_options
class FamilyOptions(FilterTraining):
    """What training needs besides the tasks, whatever the family of filters."""

    held_out: float = Field(default=0.2, ge=0, le=0.5)
    """Share of the training records that judge when to stop; 0: their Phi does."""
    loss: str | None = Field(default=None, min_length=1)
    """Class of a custom loss, a term of Phi by the filter's outputs. Without loss_module: name of
    an entry point privpipe.losses."""
    loss_module: str | None = None
    """Python file of that class. It is run, here and on workers."""
    loss_settings: dict[str, custom_code.Setting] = Field(default_factory=dict)
    """Keyword arguments of that class, besides features and outputs."""
    loss_weight: Positive = 1.0
    """Weight of the mean of that loss in Phi."""
    loss_sha256: str | None = None
    """Hash that the file of the loss must have; other content is refused."""

    def __post_init__(self) -> None:
        _ = self.loss_code  # read once: what is checked is trained with

    @cached_property
    def loss_code(self) -> custom_code.CustomCode | None:
        """The code of the loss, as it was when the options were made."""
        if self.loss is not None:
            return custom_code.CustomCode.read(
                self.loss, self.loss_module, self.loss_sha256, is_loss=True
            )
        if self.loss_module or self.loss_settings or self.loss_sha256:
            problem = "a module, settings or hash of a loss are given without its class"
            raise OptionError(problem, remedy="Name the class: loss.")
        return None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def loss_code_sha256(self) -> str | None:
        """Hash of the loss's file: part of what a run, a model and a release are of."""
        return None if self.loss_code is None else self.loss_code.sha256

    def plan_loss_task(self, schema: ShardSchema, width: int) -> tuple[Task, ...]:
        """The custom loss as a task of a filter of so many outputs, if there is one."""
        code = self.loss_code
        if code is None:
            return ()
        given = tuple(sorted(self.loss_settings.items()))
        loss = custom_code.CustomLoss(code, given, schema.n_features, width, len(schema.desired))
        whole, weight = (0, width), self.loss_weight
        return (Task(code.name, "loss", weight=weight, columns=whole, loss=loss),)

    def try_loss(self, schema: ShardSchema, n_outputs: int) -> None:
        """Try the custom loss, if there is one, on drawn records; see `check_loss`."""
        for task in self.plan_loss_task(schema, n_outputs):
            custom_code.check_loss(task.loss, schema)


@dataclass(frozen=True, eq=False)
class FamilyFit(TrainingRecord):
    """Parameters of a trained filter of any family, and how training went.

    Parameters
    ----------
    stopped, history, history_columns, task_names, baselines
        As of `TrainingRecord`.
    parameters : (n_parameters,)
    """

    parameters: FloatArray


def train_family(
    shards: Shards,
    tasks: tuple[Task, ...],
    family: filters.DifferentiableFilter,
    start: FloatArray,
    options: FamilyOptions,
    scaling: filters.InputScaling = filters.InputScaling(),  # noqa: B008  (frozen)
) -> FamilyFit:
    """Learn a filter of any differentiable family from a start, watching held-out records.

    The family is picklable, for it travels to the workers, and its conditioning is its own matter.
    See `DifferentiableFilter`.

    Raises
    ------
    ConvergenceError
        If an inner problem cannot be solved.
    """
    found, _, record = descend_in_rounds(
        options,
        shards,
        family,
        (*tasks, *options.plan_loss_task(shards.schema, family.n_features_out)),
        start,
        partial(
            descend_quasi_newton,
            scaling=scaling,
            tolerance=options.tolerance,
            early_stopping=EARLY_STOPPING if options.held_out else 0,
        ),
        n_penalised=family.n_parameters,
        held_out=options.held_out,
    )
    return FamilyFit(parameters=found.parameters, **record)


@method_options
class MinimaxNeuralOptions(FamilyOptions):
    """Options of ``[method] name = "minimax_neural"``."""

    source: ClassVar[str] = f"{HAMM}, section 6.1 (Minimax 2)"
    name: Literal["minimax_neural"] = "minimax_neural"
    n_hidden: tuple[int, ...] = Field(default=(20, 10), min_length=1)
    """Width of each layer; the last is released."""

    def check(self, schema: ShardSchema) -> None:
        """Raise OptionError or InputError if tasks or layers do not suit the records."""
        super().check(schema)
        if min(self.n_hidden) < 1:
            problem = "n_hidden has a layer without outputs."
            raise OptionError(problem, remedy="Use widths of 1 or more.")
        warn_of_outputs(self.n_hidden[-1], schema.n_features)
        self.try_loss(schema, self.n_hidden[-1])


@record_map
class NeuralFilter(FamilyFit, FeatureFilter):
    """Maps records through a trained sigmoid network.

    Parameters
    ----------
    parameters
        Weights and biases of the layers, flat; see `SigmoidFamily`.
    stopped, history, history_columns, task_names, baselines
        As of `TrainingRecord`.
    widths : (n_layers + 1,)
        Features in, then outputs of each layer.
    """

    kind: ClassVar[str] = "neural_filter"

    widths: IntArray

    @property
    def n_features_in(self) -> int:
        return int(self.widths[0])

    @property
    def n_features_out(self) -> int:
        return int(self.widths[-1])

    @property
    def _family(self) -> filters.SigmoidFamily:
        return filters.SigmoidFamily(np.zeros(self.n_features_in), tuple(self.widths[1:].tolist()))

    @property
    def layers(self) -> list[tuple[FloatArray, FloatArray]]:
        """Weights (n_in, n_out) and biases (n_out,) of each layer."""
        return self._family.split(self.parameters)

    def activate(self, values: FloatArray) -> FloatArray:
        """The logistic sigmoid of each number."""
        return np.asarray(expit(values))

    def map_records(self, records: FloatArray) -> FloatArray:
        return self._family.map_records(self.parameters, records)[0]


@keep_names
def fit_minimax_neural_filter(
    shards: Shards, options: MinimaxNeuralOptions | None = None
) -> NeuralFilter:
    """Learn a sigmoid network that preserves the target tasks and spoils the private ones.

    Returns
    -------
    NeuralFilter
        The iterate of the best held-out Phi, with the history of the fit.

    Raises
    ------
    InputError
        If labels or features cannot be used.
    OptionError
        If options contradict the data.
    ConvergenceError
        If an inner problem cannot be solved.

    Notes
    -----
    Guarantee: none for single records. Phi is not convex; the result depends on the start.
    Departure: starts from small random weights on whitened features, which on both of the paper's
    data sets beat its stacked denoising autoencoders (Vincent et al. 2008).

    References
    ----------
    Hamm, JMLR 2017, section 6.1.
    """
    options = options or MinimaxNeuralOptions()
    moments, tasks = options.measure_tasks(shards)
    family = filters.SigmoidFamily(moments.mean, options.n_hidden)
    scaling = filters.InputScaling(whiten(moments.covariance, WHITENING), options.n_hidden[0])
    # In whitened features, like the descent; the filter's own coordinates are what travels.
    start = scaling.to_filter(filters.draw_layers(family, options.seed, first=0.05, rest=0.5))
    fit = train_family(shards, tasks, family, start, options, scaling)
    # The bias is changed in place, which the descent's result must not notice.
    parameters = fit.parameters.copy()
    weights, bias = family.split(parameters)[0]
    bias -= moments.mean @ weights  # the frozen map takes records as they are
    widths = np.array([family.n_features_in, *options.n_hidden])
    return NeuralFilter(**(vars(fit) | {"parameters": parameters, "widths": widths}))
