"""Maps of maps: several applied in order, stored and released as one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy.typing as npt

from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.numerics.random.streams import ScopedStream
from privpipe.promises import check_promise
from privpipe.protocols import Guarantee, RecordMap, RecordStream, Role
from privpipe.sanitizers.names import by_name


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
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
            fits = right.reads == "features" and left.reads == "features"
            if not fits or left.n_features_out != right.n_features_in:
                raise OptionError(
                    f"A {right.kind} of {right.n_features_in} features cannot follow a {left.kind} "
                    f"that releases {left.n_features_out}.",
                    remedy="Give maps of features that fit one another, first to last.",
                )
        parts = [each.guarantee for each in self.maps if each.guarantee.number is not None]
        least = {one.kind: min(_numbers(parts, one.kind)) for one in parts}
        check_promise(self.guarantee, least)

    @property
    def reads(self) -> Role:
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

    def apply(self, x: Any, stream: RecordStream | None = None) -> npt.NDArray[Any]:
        """Map (n_records, n_features_in) to (n_records, n_features_out).

        Raises
        ------
        OptionError, InputError
            As the maps; without a stream if one of them draws.
        """
        x = by_name(self, x)
        for number, each in enumerate(self.maps):
            x = each.apply(x, ScopedStream(stream, f"map {number}") if stream is not None else None)
        return x  # type: ignore[no-any-return]  # an array since the first map


def _numbers(promises: list[Guarantee], kind: str) -> list[float]:
    return [float(one.number or 0.0) for one in promises if one.kind == kind]
