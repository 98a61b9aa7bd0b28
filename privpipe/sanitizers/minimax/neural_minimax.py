"""Minimax filters that are sigmoid networks, the paper's second family.

Hamm, JMLR 2017, Minimax 2. The objective is the same as for linear filters; the network starts
small on whitened features and stops on held-out records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass
from scipy.special import expit

from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.numerics.minimax.filters import InputScaling, SigmoidFamily, draw_layers
from privpipe.numerics.spectra import whiten
from privpipe.option_values import FORBID
from privpipe.protocols import (
    FloatArray,
    Guarantee,
    IntArray,
    RecordStream,
    Role,
    Shards,
    ShardSchema,
)
from privpipe.sanitizers.arrays import check_shards
from privpipe.sanitizers.minimax.family_training import FamilyOptions, train_family
from privpipe.sanitizers.minimax.linear_filter import as_method, check_records, promise_nothing
from privpipe.sanitizers.minimax.training.adversaries import check_adversaries
from privpipe.sanitizers.minimax.training.custom_checks import check_loss
from privpipe.sanitizers.minimax.training.labelled_moments import measure_moments
from privpipe.sanitizers.minimax.training.task_planning import check_tasks, warn_of_outputs
from privpipe.sanitizers.names import by_name, keep_names

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
    check_shards(shards)
    options = options or MinimaxNeuralOptions()
    check_network(options, shards.schema)
    moments = measure_moments(shards)
    family = SigmoidFamily(moments.mean, options.n_hidden)
    scaling = InputScaling(whiten(moments.covariance, WHITENING), options.n_hidden[0])
    start = scaling.to_filter(draw_layers(family, options.seed, first=0.05, rest=0.5))
    trained = train_family(shards, moments, family, scaling, start, options)
    parameters = trained.descent.parameters.copy()
    weights, bias = family.split(parameters)[0]
    bias -= moments.mean @ weights  # the frozen map takes records as they are
    widths = np.array([family.n_features_in, *options.n_hidden])
    return NeuralFilter(parameters, widths, **trained.record())


def check_network(options: MinimaxNeuralOptions, schema: ShardSchema) -> None:
    """Raise OptionError or InputError if tasks or layers do not suit the records."""
    check_tasks(options, schema)
    check_adversaries(options, schema)
    if min(options.n_hidden) < 1:
        raise OptionError(
            "n_hidden has a layer without outputs.", remedy="Use widths of 1 or more."
        )
    warn_of_outputs(options.n_hidden[-1], schema.n_features)
    check_loss(options.plan_loss(schema, options.n_hidden[-1]), schema)


METHODS = (
    as_method(
        MinimaxNeuralOptions,
        fit_minimax_neural_filter,
        NeuralFilter,
        check_network,
        source="Hamm 2017, Minimax Filter, JMLR 18, section 6.1 (Minimax 2)",
    ),
)
