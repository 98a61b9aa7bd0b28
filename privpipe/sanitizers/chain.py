"""Maps of maps: several applied in order, stored and released as one.

A method that depends on the scales of the features learns from standardised records. Its model is a
`Chain` of the `Standardiser` and the method's own map. Records to come are standardised by the
training records, never by themselves.
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from privpipe import protocols
from privpipe.described import record_map
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import by_name, giving_back
from privpipe.numerics.moments import CoMoments, measure_scale
from privpipe.numerics.random.streams import ScopedStream
from privpipe.promises import check_promise
from privpipe.protocols import AnyArray, FloatArray, Guarantee, Method, RecordMap, Shard, Shards
from privpipe.sanitizers import arrays, feature_map, grounds


@record_map
class Chain:
    """Applies maps in order, each to what the one before released.

    Parameters
    ----------
    maps
        First to last; the features that one releases are those that the next reads.
    guarantee
        Promise of the whole, stated by whoever builds the chain: promises of the parts do not
        compose by themselves.

    Raises
    ------
    OptionError
        If there is no map, or two of them do not fit.
    GuaranteeError
        If the promise is none that one of the maps makes, or of a smaller number.

    Notes
    -----
    Every map draws from words of its own, also where two are of one kind.

    Examples
    --------
    >>> from privpipe.sanitizers.minimax.linear_filter import LinearFilter
    >>> double = LinearFilter("rand", np.array([[2.0]]), np.zeros(1))
    >>> Chain((double, double), double.guarantee).apply(np.array([[3.0]]))
    array([[12.]])
    """

    kind: ClassVar[str] = "chain"

    maps: tuple[RecordMap, ...]
    guarantee: Guarantee

    def __post_init__(self) -> None:
        if not self.maps:
            raise OptionError("A chain has no maps.", remedy="Give one or more.")
        for left, right in pairwise(self.maps):
            # Codes of categories mean something else after every map: only features can be handed
            # on.
            fits = right.reads == "features" and left.reads == "features"
            if not fits or left.n_features_out != right.n_features_in:
                raise OptionError(
                    f"A {right.kind} of {right.n_features_in} features cannot follow a {left.kind} "
                    f"that releases {left.n_features_out}.",
                    remedy="Give maps of features that fit one another, first to last.",
                )
        parts = [each.guarantee for each in self.maps if each.guarantee.number is not None]
        kinds = {one.kind for one in parts}
        least = {k: min(float(one.number or 0.0) for one in parts if one.kind == k) for k in kinds}
        # A chain promises at most what one of its maps does: a forged promise is refused when
        # opened.
        check_promise(self.guarantee, least)

    @property
    def reads(self) -> protocols.Role:
        """What the first map reads."""
        return self.maps[0].reads

    @property
    def draws(self) -> bool:
        """Whether any of the maps does."""
        return any(each.draws for each in self.maps)

    @property
    def keeps_features(self) -> bool:
        """Whether all of the maps do."""
        return all(each.keeps_features for each in self.maps)

    @property
    def n_features_in(self) -> int:
        return self.maps[0].n_features_in

    @property
    def n_features_out(self) -> int:
        return self.maps[-1].n_features_out

    @giving_back
    def apply(self, x: Any, stream: protocols.RecordStream | None = None) -> AnyArray:
        """Map (n_records, n_features_in) to (n_records, n_features_out).

        Raises
        ------
        OptionError, InputError
            As the maps; without a stream if one of them draws.
        """
        x = by_name(self, x)
        for number, each in enumerate(self.maps):
            # Two maps of one kind would draw the same words for the same purpose, and their noise
            # would cancel or double: each has a prefix of its own.
            x = each.apply(x, ScopedStream(stream, f"map {number}") if stream is not None else None)
        return x  # type: ignore[no-any-return]  # an array since the first map


@record_map
class Standardiser(feature_map.FeatureMap):
    """Maps records to ``(x - centre) / scale``, feature by feature, in float64.

    Parameters
    ----------
    centre : (n_features,)
        Means of the training records, in the units of the features.
    scale : (n_features,)
        Their standard deviations; 1 where a feature does not vary.

    Raises
    ------
    OptionError
        If the two do not fit, or a scale is not positive.

    Examples
    --------
    >>> Standardiser(np.array([10.0]), np.array([2.0])).apply(np.array([[14.0], [9.0]]))
    array([[ 2. ],
           [-0.5]])
    """

    kind: ClassVar[str] = "standardiser"
    keeps_features: ClassVar[bool] = False

    centre: FloatArray
    scale: FloatArray

    def __post_init__(self) -> None:
        fits = self.centre.ndim == 1 and self.centre.shape == self.scale.shape
        if not fits or not (self.scale > 0).all():
            raise OptionError(
                f"Centres of shape {self.centre.shape} and scales of shape {self.scale.shape} do "
                "not fit, or a scale is not positive.",
                remedy="Give one of each per feature; 1 leaves a feature as it is.",
            )

    @property
    def n_features_in(self) -> int:
        return len(self.centre)

    n_features_out = n_features_in

    guarantee: ClassVar[Guarantee] = grounds.say_promise("scaling")
    """None: units hide nothing."""

    def map_records(self, records: FloatArray) -> FloatArray:
        """In standard deviations of the training records."""
        # Element by element: the same bits for a record in any block.
        return (records.astype(np.float64, copy=False) - self.centre) / self.scale


def fit_standardiser(shards: Shards) -> Standardiser:
    """Means and standard deviations of the features, in one pass.

    Parameters
    ----------
    shards
        Training records; their weights do not count.

    Raises
    ------
    InputError
        If features are not finite, or there are no records.
    """
    moments = shards.reduce(summarise_features)
    if moments.count == 0:
        raise InputError("There are no training records.", remedy="Give some.", code="empty")
    n_features = len(moments.mean)
    return Standardiser(moments.mean, measure_scale(moments, n_features, with_intercept=True))


def fit_standardised(method: Method, shards: Shards, options: Any, **extra: Any) -> RecordMap:
    """Fit a method to standardised records; the map standardises records to come likewise.

    Parameters
    ----------
    method
        A row whose fit depends on scales (`Method.scales`).
    shards, options, extra
        As its `fit` takes them.

    Returns
    -------
    Chain
        The standardiser, then what the method learned; it promises what that promises of
        standardised records.
    """
    standardiser = fit_standardiser(shards)
    change = partial(_standardise, standardiser=standardiser)
    fitted = method.fit(arrays.ChangedShards(shards, change, shards.schema), options, **extra)
    return Chain((standardiser, fitted), fitted.guarantee)


def summarise_features(shard: Shard) -> CoMoments:
    """Worker side: co-moments of the features alone."""
    arrays.check_training(shard.features)
    return CoMoments.of(shard.features)


def _standardise(shard: Shard, *, standardiser: Standardiser) -> Shard:
    """Worker side: what a fit sees of a shard."""
    return replace(shard, features=standardiser.map_records(shard.features))
