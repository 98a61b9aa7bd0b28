"""What a fitted map may be able to do beside `apply`, and a method beside `fit`: it has it or not.

Cleaning, audit and training look for these, never for a method or a class of map. A new map that
has the attributes is treated accordingly, with no line changed elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from privpipe import protocols
from privpipe.protocols import AnyArray, FloatArray, IntArray, RecordStream, Shard, ShardSchema


@runtime_checkable
class Measures(Protocol):
    """Says what it did to records while it does it; the receipts of a release then hold it."""

    def apply_measured(
        self, x: Any, stream: RecordStream | None = None, *, overwrite_x: bool = False
    ) -> "tuple[AnyArray, Measured]":
        """Released records as `apply` gives them, and what that cost, bounded, or did not know.

        With `overwrite_x` the records are finite and not needed any more: where they fit,
        released ones may take their place. Where nothing is drawn withheld records are left out
        before.
        """


@runtime_checkable
class Descends(Protocol):
    """Was learned by descent on a trade-off, and says how that went."""

    stopped: str
    """Why the descent ended."""

    history: FloatArray
    """One row per iteration, the starting point first."""

    history_columns: tuple[str, ...]
    """Names of its columns."""

    task_names: tuple[str, ...]
    """Predictions to preserve or to spoil, whose losses are columns ``loss_<task>``."""

    baselines: FloatArray
    """(n_tasks,): loss of the best constant guess of each."""


@dataclass(frozen=True, eq=False)
class AddsUp:
    """Sums over some records, which are those over more once every field is added.

    Of a field `largest` the larger one is taken.
    """

    def merge(self, other: Self) -> Self:
        """Sums of the records of both; of whole numbers the same bits in any order."""
        theirs = vars(other)
        joins = {name: max if name == "largest" else add for name in theirs}
        both = {name: join(vars(self)[name], theirs[name]) for name, join in joins.items()}
        return replace(self, **both)


@dataclass(frozen=True)
class BoundCounts(AddsUp):
    """How many records a bound changed; counts alone.

    Parameters
    ----------
    n_records
        Records bounded.
    n_clipped
        Records beyond the threshold.
    n_overflowing
        Records whose filtered values are too large for floating point, bounded to 0.
    """

    n_records: int
    n_clipped: int
    n_overflowing: int


@runtime_checkable
class Projects(Protocol):
    """Is linear: a record becomes ``x @ weights + offset``, and nothing else happens to it."""

    weights: FloatArray
    """(n_features_in, n_features_out)."""

    offset: FloatArray
    """(n_features_out,)."""


@runtime_checkable
class Layered(Protocol):
    """Is linear layers in turn, with one function of single numbers behind each."""

    layers: Sequence[tuple[FloatArray, FloatArray]]
    """Weights (n_in, n_out) and offset (n_out,) of each, the first on the records."""

    def activate(self, values: FloatArray) -> FloatArray:
        """The function, number by number: the same bits in whatever row and chunk."""


@runtime_checkable
class Reconstructs(Protocol):
    """Releases something shorter than records, which readers turn into records."""

    def reconstruct(self, coordinates: Any) -> FloatArray:
        """Records as a reader of the release sees them."""


@runtime_checkable
class Estimates(Protocol):
    """Lets readers of its release say something of the records, with errors that hold its noise."""

    def estimate(self, of: Any, column: str | None, open_release: Callable[[], Any]) -> list[Any]:
        """What is estimated, by this map and, where they are read, its records.

        `column` is the response of a regression, or has the groups that are compared.
        """


@runtime_checkable
class TakesCanaries(Protocol):
    """Promises privacy of single records, and releases records of two kinds to have it audited."""

    guarantee: protocols.Guarantee
    n_canaries: int
    """As many as show most of the promise in some seconds."""

    canary_noise: float | None
    """Root mean square of a released coordinate's noise, as promised; None where unknown."""

    def release_canaries(
        self, kinds: protocols.BoolArray, key: bytes, loss: float = 1.0
    ) -> tuple[FloatArray, IntArray | None]:
        """What an outsider sees of each, (n_canaries, any), under a key of their own.

        And of Gaussian noise of sums, in which of them each is, (n_canaries,). With `loss` noise
        that protects so much less, as a fault would be.
        """


@runtime_checkable
class Spends(Protocol):
    """Spends a budget on the desired prediction, of every record or on average."""

    predictor: FloatArray
    """Of the desired prediction, (n_released, n_predictions)."""

    utility_budget: float
    """In squared units of the prediction."""


@dataclass(frozen=True, eq=False)
class UtilityPromise:
    """What every released record keeps.

    Parameters
    ----------
    predictor : (n_released, n_predictions)
        The desired predictor, in the features of records as readers see them.
    utility_budget
        Largest loss per record, in squared units of its prediction.
    """

    predictor: FloatArray
    utility_budget: float


@runtime_checkable
class Promises(Protocol):
    """Promises the utility of every record: the audit checks it, and no release breaks it."""

    promise: UtilityPromise


@runtime_checkable
# Digits of a bound once carried the secret: what is released must be a function of what may be
# known, bit for bit.
class FollowsTarget(Protocol):
    """Makes of a record a function of its target prediction and of the map alone, bit for bit.

    Whoever sees the release and has the map then knows no more of a record than whoever has the map
    and the prediction. The audit verifies this record by record, and attacks the prediction
    instead.
    """

    target_theorem: ClassVar[str]
    """What it rests on, in a sentence."""

    def predict_target(self, x: Any) -> FloatArray:
        """Target predictions as they enter the release, (n_records, n_predictions), float64."""

    def release_target(self, values: FloatArray, dtype: protocols.DTypeLike) -> FloatArray:
        """Records as readers see them, made of target predictions and of nothing else."""


@runtime_checkable
class MakesRecords(Protocol):
    """Makes records of its own, which belong to no person, in tiles of `tile_rows`."""

    feature_names: tuple[str, ...]
    response_names: tuple[str, ...]
    tile_rows: int
    n_records: int

    n_tiles: int
    """How many tiles there are."""

    def finish_records(self, made_of: Any) -> tuple[FloatArray, FloatArray]:
        """Features and responses of the surrogates of a tile: of its number, or, where records are
        mixed, of the sums over all of them."""

    def restore_records(
        self, shard: Shard, *, schema: ShardSchema, reads_responses: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Features with the bias, and responses, of the records as they are summed."""


@runtime_checkable
class MixesRecords(Protocol):
    """Makes such records as sums over all records, with random signs of each.

    Its sums are exact, so that neither chunks nor workers change a bit of them. Each tile is one
    pass over all records.
    """

    def sum_records(
        self, shard: Shard, schema: ShardSchema, stream: RecordStream, places: IntArray, tile: int
    ) -> Any:
        """Mergeable sums of the records of a shard, which are at `places` of the stream."""


@runtime_checkable
class RunsCode(Protocol):
    """Holds code of the user's, which runs only where it is trusted."""

    def trust(self) -> None:
        """Let its code run in this process: its digest is the one of this run."""


@dataclass(frozen=True)
class Preview:
    """A few chunks of a run that has not begun, evenly spread; read when needed.

    Parameters
    ----------
    is_whole
        Whether these are all records.
    read_training
        Attributes and labels of records that the fit will see; no features.
    read_labelled
        The same records whole, as one shard, and as a fit reads them.
    read_attributes
        Attributes of records that will be released, (n_records, n_attributes).
    held_out
        Share of the training records that the audit holds out, in [0, 1).
    has_subjects
        Whether several records may be of one person.
    n_training
        All training records, those of the audit included; 0 where it is not known.
    """

    is_whole: bool
    read_training: Callable[[], Sequence[Shard]]
    read_labelled: Callable[[], tuple[Shard, protocols.Shards]]
    read_attributes: Callable[[], IntArray]
    held_out: float = 0.0
    has_subjects: bool = False
    n_training: int = 0


class Forecast(Protocol):
    """What a method forecasts of a run; a dataclass of counts, no value of a record."""

    about: ClassVar[str]
    """One word: what it is about."""

    def describe(self) -> str:
        """In a sentence or two."""


@dataclass(frozen=True)
class UtilitySummary(AddsUp):
    """What cleaning some records cost, in squared units of the desired prediction.

    Parameters
    ----------
    n_records
        Records cleaned, withheld ones included.
    n_withheld
        Rows of NaN: rounding alone might have cost them more than the budget.
    total, largest
        Sum and largest value of e_utility over the other records.
    n_at_budget
        Records that spent the whole budget but for a thousandth.
    """

    n_records: int
    n_withheld: int
    total: float
    largest: float
    n_at_budget: int


Measured = UtilitySummary | BoundCounts | int
"""What a map says of the records that it made: their cost, what a bound changed, or how many the
fit had not seen."""
