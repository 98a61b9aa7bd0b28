"""Minimax filters that are not linear: the paper's sigmoid network, and families of the user's.

Hamm, JMLR 2017, Minimax 2. The objective is the same as for linear filters; the network starts
small on whitened features, or pre-trained as in the paper, and stops on held-out records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass
from scipy.special import expit

from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.numerics.minimax.filters import InputScaling
from privpipe.numerics.minimax.network import SigmoidFamily, draw_layers
from privpipe.numerics.spectra import whiten
from privpipe.option_values import FORBID
from privpipe.protocols import (
    FloatArray,
    Guarantee,
    IntArray,
    Method,
    RecordStream,
    Role,
    Shards,
    ShardSchema,
)
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.family_training import (
    FamilyOptions,
    freeze_descent,
    plan_family_tasks,
    train_family,
)
from privpipe.sanitizers.minimax.linear_filter import EMPIRICAL, check_records, promise_nothing
from privpipe.sanitizers.minimax.training.adversaries import check_adversaries
from privpipe.sanitizers.minimax.training.filter_widths import warn_of_outputs
from privpipe.sanitizers.minimax.training.labelled_moments import (
    LABEL_STATISTICS,
    LabelledMoments,
    measure_moments,
)
from privpipe.sanitizers.minimax.training.pretraining import pretrain_layers
from privpipe.sanitizers.minimax.training.task_planning import check_tasks
from privpipe.sanitizers.minimax.training.tasks import Task
from privpipe.sanitizers.names import by_name, keep_names

ERASED = 0.2
"""Share of the entries that autoencoders must restore."""
AUTOENCODER_ITERATIONS, SUPERVISED_ITERATIONS = 200, 20
"""Most iterations of each autoencoder, and then on the target alone."""
WHITENING = 1.0
"""Ridge of the whitening, relative to the mean eigenvalue: weak directions stay weak."""


@options_dataclass(frozen=True, kw_only=True, config=FORBID)
class MinimaxNeuralOptions(FamilyOptions):
    """Options of ``[method] name = "minimax_neural"``."""

    name: Literal["minimax_neural"] = "minimax_neural"
    n_hidden: Annotated[
        tuple[int, ...],
        Field(min_length=1, description="Width of each layer; the last is released."),
    ] = (20, 10)
    pretraining: Annotated[
        Literal["none", "autoencoder"],
        Field(
            description="none: small random weights on whitened features. autoencoder: the "
            "paper's stacked denoising autoencoders and supervised steps."
        ),
    ] = "none"


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class NeuralFilter:
    """Maps records through a trained sigmoid network.

    Parameters
    ----------
    parameters
        Weights and biases of the layers, flat; see `SigmoidFamily`.
    widths : (n_layers + 1,)
        Features in, then outputs of each layer.
    stopped
        Why the fit ended: "gradient", "progress", "iterations", "held_out", "line_search" or
        "inner" (see `Descent`).
    history, history_columns, task_names, baselines
        As of `LinearFilter`.
    """

    kind: ClassVar[str] = "neural_filter"
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = False

    parameters: FloatArray
    widths: IntArray
    stopped: str
    history: FloatArray
    history_columns: tuple[str, ...]
    task_names: tuple[str, ...]
    baselines: FloatArray

    @property
    def n_features_in(self) -> int:
        return int(self.widths[0])

    @property
    def n_features_out(self) -> int:
        return int(self.widths[-1])

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; see `promise_nothing`."""
        return promise_nothing("minimax")

    @property
    def _family(self) -> SigmoidFamily:
        return SigmoidFamily(np.zeros(self.n_features_in), tuple(self.widths[1:].tolist()))

    @property
    def layers(self) -> list[tuple[FloatArray, FloatArray]]:
        """Weights (n_in, n_out) and biases (n_out,) of each layer."""
        return self._family.split(self.parameters)

    def activate(self, values: FloatArray) -> FloatArray:
        """The logistic sigmoid of each number."""
        found: FloatArray = expit(values)
        return found

    def apply(self, x: npt.ArrayLike, stream: RecordStream | None = None) -> FloatArray:
        """Filter records, (n_records, n_features_in); see `LinearFilter.apply`."""
        records, dtype = check_records(by_name(self, x), self.n_features_in)
        released: FloatArray = self._family.map_records(self.parameters, records)[0].astype(dtype)
        return released


@keep_names
def fit_minimax_neural_filter(
    shards: Shards, options: MinimaxNeuralOptions | None = None
) -> NeuralFilter:
    """Learn a sigmoid network that keeps the target tasks and spoils the private ones.

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
    Departure: starts from small random weights on whitened features, which on both data sets
    beat pre-training; ``pretraining = "autoencoder"`` is the paper's way.

    References
    ----------
    Hamm, JMLR 2017, section 6.1; Vincent et al. 2008.
    """
    check_shards(shards)
    options = options or MinimaxNeuralOptions()
    check_network(options, shards.schema)
    moments = measure_moments(shards)
    family = SigmoidFamily(moments.mean, options.n_hidden)
    scaling = InputScaling(whiten(moments.covariance, WHITENING), options.n_hidden[0])
    tasks = plan_family_tasks(shards, moments, options, options.n_hidden[-1])
    start = _find_start(shards, moments, tasks, family, scaling, options)
    trained = train_family(shards, family, tasks, scaling, start, options)
    found, tasks = trained.descent, trained.tasks
    parameters = found.parameters.copy()
    weights, bias = family.split(parameters)[0]
    bias -= moments.mean @ weights  # the frozen map takes records as they are
    fit = freeze_descent(found, parameters, tasks, options)
    return NeuralFilter(widths=np.array([family.n_features_in, *options.n_hidden]), **vars(fit))


def _find_start(
    shards: Shards,
    moments: LabelledMoments,
    tasks: Sequence[Task],
    family: SigmoidFamily,
    scaling: InputScaling,
    options: MinimaxNeuralOptions,
) -> FloatArray:
    if options.pretraining == "none":
        return scaling.to_filter(draw_layers(family, options.seed, first=0.05, rest=0.5))
    start = pretrain_layers(
        shards,
        family,
        moments,
        erase=ERASED,
        ridge=1e-3,
        max_iterations=AUTOENCODER_ITERATIONS,
        seed=options.seed,
    )
    targets = tuple(task for task in tasks if task.weight > 0)
    supervised = replace(options, max_iterations=SUPERVISED_ITERATIONS)
    return train_family(shards, family, targets, scaling, start, supervised).descent.parameters


def check_network(options: MinimaxNeuralOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if tasks or layers do not suit the records."""
    check_tasks(options, schema)
    check_adversaries(options, schema)
    if min(options.n_hidden) < 1:
        raise OptionError(
            "n_hidden has a layer without outputs.", remedy="Use widths of 1 or more."
        )
    warn_of_outputs(options.n_hidden[-1], schema.n_features)
    options.check_loss(schema, options.n_hidden[-1])


METHODS = (
    Method(
        name="minimax_neural",
        options=MinimaxNeuralOptions,
        releases="rows",
        fit=fit_minimax_neural_filter,
        source="Hamm 2017, Minimax Filter, JMLR 18, section 6.1 (Minimax 2)",
        maps=(NeuralFilter,),
        check=check_network,
        promise=EMPIRICAL,
        statistics=LABEL_STATISTICS,
    ),
)
