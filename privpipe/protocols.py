"""What the rooms agree on: Shard, Shards, Statistics, oracles, RecordMap, Guarantee, Method.

Values and protocols only, no behaviour worth a test of its own. Records are rows everywhere.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from privpipe.errors import GuaranteeError, printable

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
BoolArray = npt.NDArray[np.bool_]
WordArray = npt.NDArray[np.uint64]
OctetArray = npt.NDArray[np.uint8]
AnyArray = npt.NDArray[Any]
Names = Sequence[str]
ArrayLike = npt.ArrayLike
DTypeLike = npt.DTypeLike

Role = Literal["features", "desired", "confidential", "attributes", "groups"]


@dataclass(frozen=True)
class Column:
    """One named variable of a collection.

    Parameters
    ----------
    name
        Name in the collection.
    n_categories
        Number of categories of a categorical variable, whose values are the codes
        ``0 .. n_categories - 1`` (and -1 where missing); None for a numeric variable.
    categories
        What each code is called, where that is known; it is printed only where it is public.
    """

    name: str
    n_categories: int | None = None
    categories: tuple[str, ...] | None = field(default=None, repr=False)

    @property
    def is_categorical(self) -> bool:
        return self.n_categories is not None


@dataclass(frozen=True)
class ShardSchema:
    """What every shard of one training collection looks like.

    Parameters
    ----------
    n_features
        Number of columns of the features.
    desired, confidential, attributes
        The named variables of each role, in the order of the shard's columns.
    groups
        The variable that says whose records belong together, if there is one.
    feature_names
        Names of the features, for messages; empty when the collection has none.
    weighted
        Whether records count by weights.
    public
        Whether the records are said to be public: what is learned from them then reveals nothing.
    n_records
        Records of the whole collection, those that a fit holds out or leaves out among them; 0
        where that is not known.
    """

    n_features: int
    desired: tuple[Column, ...] = ()
    confidential: tuple[Column, ...] = ()
    attributes: tuple[Column, ...] = ()
    groups: tuple[Column, ...] = ()
    feature_names: tuple[str, ...] = ()
    weighted: bool = False
    public: bool = False
    n_records: int = 0

    @property
    def named_features(self) -> tuple[str, ...]:
        """Names of the features, or their numbers."""
        return self.feature_names or tuple(f"feature_{j}" for j in range(self.n_features))


@dataclass(frozen=True, eq=False)
class Shard:
    """Some records as plain arrays; all arrays have the same number of rows.

    Parameters
    ----------
    features : (n_records, n_features)
        Features, in the dtype of the collection.
    desired : (n_records, n_desired), float64
        Desired variables; a categorical one as its integer codes. NaN where missing.
    confidential : (n_records, n_confidential), float64
        Confidential variables, likewise.
    attributes : (n_records, n_attributes), integer
        Categorical attributes as codes, -1 where missing (privacy mappings).
    released : (n_records, n_features_released)
        What a release holds for these records; only audits see it.
    first_record
        Number of the first record within its collection. Below 0 when rows were left out: of a
        chunk of a collection ``~`` the number with which it begins, else -1.
    weights : (n_records,), float64
        How often each record counts in a fit; empty when all count once.
    groups : (n_records,), int64
        Whose each record is, where there are groups; else empty.
    """

    features: FloatArray
    desired: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    confidential: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    attributes: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))
    released: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    first_record: int = 0
    weights: FloatArray = field(default_factory=lambda: np.empty(0))
    groups: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def n_records(self) -> int:
        # A shard of attributes alone has features of no columns and no rows.
        return max(len(self.features), len(self.attributes))

    @property
    def n_bytes(self) -> int:
        """Of its arrays."""
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, np.ndarray))


class Statistics(Protocol):
    """A mergeable summary of records. Merging is associative, and commutative to rounding."""

    def merge(self, other: Self) -> Self:
        """Summary of the records of both, neither changed."""


S = TypeVar("S", bound=Statistics)
P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


class Oracle(Protocol[P_contra, R_co]):
    """Answers one question about all records: parameters in, sums out."""

    def __call__(self, parameters: P_contra, /) -> R_co: ...


Sums = tuple[Any, ...]
"""What a shard contributes to an oracle's answer: floats and arrays, added over the shards."""


@runtime_checkable
class Shards(Protocol):
    """What a fit may request of training data, wherever the records are.

    `Records` answers in memory, a collection chunk by chunk, `privpipe.cluster` on workers.
    """

    @property
    def n_records(self) -> int: ...

    @property
    def schema(self) -> ShardSchema: ...

    def reduce(self, summarise: Callable[[Shard], S]) -> S:
        """Summarise every shard and merge the summaries; only they leave the shards.

        `summarise` is a picklable function, usually ``SomeStatistics.of``.
        """

    def oracle(self, function: Callable[..., Sums], **resident: Any) -> Oracle[Any, Sums]:
        """Make a callable that sums ``function(shard, parameters, **resident)`` over shards.

        `resident` is sent to the workers once, `parameters` at each call. `function` is picklable
        and returns a tuple of floats and arrays. The tuples are added element by element in the
        order of the shards, so that the answer does not depend on the number of workers.
        """


@runtime_checkable
class RecordStream(Protocol):
    """Random words for a run of consecutive records.

    The words depend on the release key, the purpose, the partition and the number of the record.
    They never depend on chunking, worker, retry or the order of calls.
    """

    @property
    def n_records(self) -> int: ...

    def words(self, purpose: str, words_per_record: int) -> WordArray:
        """Uniform 64-bit words, shape (n_records, words_per_record)."""

    def tiles(self, purpose: str, words_per_record: int) -> Iterator[tuple[slice, WordArray]]:
        """Yield the same words piecewise: which records of the run, and their words.

        A tile is valid until the next one is taken.
        """

    def words_at(
        self, purpose: str, words_per_record: int, records: IntArray, places: IntArray | None = None
    ) -> WordArray:
        """Words of some records, shape (len(records), words_per_record).

        `records` are numbers within this run, 0 the first, in any order. `places`, of shape
        (len(records), n), are words of each, where not all are needed.
        """


@dataclass(frozen=True)
class Guarantee:
    """What a fitted map promises, in a form a privacy officer can quote.

    Parameters
    ----------
    kind
        Short stable name: "utility_bound", "exact_up_to_rounding", "local_dp",
        "information_bound", "central_dp", "none".
    number
        The promised number; None where the kind has none.
    unit
        Unit of the number.
    scope
        Whether the promise holds for every record or in expectation.
    theorem
        What it rests on, by paper and statement.
    assumptions
        What must be true for it to hold, in a sentence; empty when nothing.
    delta
        Delta of (epsilon, delta)-differential privacy; 0 where the promise is pure or of
        another kind.
    protects
        Whose data one unit of the promise is about: "record", or the name of the variable whose
        records count as one subject.
    parameters
        Further numbers that a reader needs to check the promise, by name, in order: what it was
        composed of, a norm, a slack.
    statement
        The promise in a sentence to be quoted, where number and unit do not say it all.

    Raises
    ------
    GuaranteeError
        If the number is not finite or below 0, or delta is no probability below 1: whoever wrote
        that promises nothing.
    """

    kind: str
    number: float | None
    unit: str
    scope: Literal["every record", "in expectation"]
    theorem: str
    assumptions: str = ""
    delta: float = 0.0
    protects: str = "record"
    parameters: tuple[tuple[str, float], ...] = ()
    statement: str = ""

    def __post_init__(self) -> None:
        pairs = tuple((str(name), float(number)) for name, number in self.parameters)
        object.__setattr__(self, "parameters", pairs)  # a document brings lists
        number, delta = 0.0 if self.number is None else self.number, self.delta
        # Before the comparison: a document may hold a text for a number.
        typed = isinstance(number, int | float) and isinstance(delta, int | float)
        if not (typed and isinstance(self.kind, str) and 0 <= number < math.inf and 0 <= delta < 1):
            raise GuaranteeError(
                f"{printable(str(self.kind))!r} of {number!r} with delta {delta!r} is no promise.",
                remedy="Somebody changed it: get it again from where it came.",
                code="promise",
            )


class RecordMap(Protocol):
    """A fitted, frozen, small, storable map from records to released records, row by row.

    Implementations are dataclasses (``frozen=True, eq=False``). Their fields are arrays, numbers,
    strings, a `Guarantee`, other maps, or tuples of these; that is all an artifact stores. `kind`
    names the class in artifacts and never changes.
    """

    kind: ClassVar[str]

    @property
    def reads(self) -> Role:
        """Which part of a record goes in: "features" (floats) or "attributes" (codes)."""

    @property
    def draws(self) -> bool:
        """Whether `apply` draws at random and needs a stream."""

    @property
    def keeps_features(self) -> bool:
        """Whether predictors of raw records apply to released ones.

        The columns are the same features, followed by a column of ones where one is appended.
        """

    @property
    def n_features_in(self) -> int: ...

    @property
    def n_features_out(self) -> int: ...

    @property
    def guarantee(self) -> Guarantee: ...

    def apply(self, x: Any, stream: RecordStream | None = None) -> AnyArray:
        """Map (n_records, n_features_in) to (n_records, n_features_out).

        A randomised map without a stream raises OptionError; a deterministic one ignores it.
        """


@dataclass(frozen=True)
class Method:
    """One row of the table of methods: all that flows, contract tests and prose read.

    Parameters
    ----------
    options
        Class of the method's options, a `privpipe.sanitizers.options.MethodOptions`: they know what
        a fit with them needs and does, and the method's name.
    fit
        Learns the map: ``fit(shards, options, **files)``, where `files` holds the arrays of each
        file that the options name.
    check
        Raises OptionError or InputError for options that no training records of a schema can be
        fitted with. All that needs no record is refused here, before anything is read.
    source
        Paper and algorithm.
    maps
        Classes of the maps that `fit` returns, with those that a layout of the release makes of
        them. An artifact of this method may hold these.
    statistics
        Dataclasses that its passes over the records sum up, with those within them: what may be
        checkpointed, so that an interrupted pass resumes.
    promise
        What it promises, in a few words for a table.
    releases
        "rows": one released record per record. "surrogate": records of its own.
    forecast
        What a few chunks say of a run before it: ``forecast(preview, options)``, of a
        `privpipe.capabilities.Preview`; None where there is nothing to say.
    """

    options: type[Any]
    fit: Callable[..., RecordMap]
    source: str
    maps: tuple[type[RecordMap], ...]
    promise: str
    releases: Literal["rows", "surrogate"] = "rows"
    statistics: tuple[type[Any], ...] = ()
    check: Callable[[Any, ShardSchema], None] = lambda _, __: None
    forecast: Callable[[Any, Any], Any] | None = None

    @property
    def name(self) -> str:
        """Name in a configuration, ``[method] name = ...``."""
        return str(self.options.name)
