"""What a round of pricing sends back: prices, and of symbols and partners only those named.

Numbers of symbols and columns take as few bytes as hold the largest; which of them are there is
given by a count per column and a bit per symbol and group. Nothing is rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.numerics.mapping.pricing.pair_pricing import Prices
from privpipe.protocols import FloatArray

__all__ = ["Reply", "pack_prices", "unpack_prices"]

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Reply:
    """Prices of a block, packed.

    Parameters
    ----------
    values : (n_columns,)
    counts : (n_columns,)
        Symbols named for each column.
    top
        Most symbols that could be named.
    symbols : (sum of counts,)
    shape
        Symbols and groups that partners were asked for.
    named
        A bit for each of them.
    partners, slack
        Of those whose bit is set, in order.
    """

    values: FloatArray
    counts: Numbers
    top: int
    symbols: Numbers
    shape: tuple[int, int]
    named: Bytes
    partners: Numbers
    slack: FloatArray

    @property
    def n_bytes(self) -> int:
        """Of its arrays."""
        arrays = (self.values, self.counts, self.symbols, self.named, self.partners, self.slack)
        return sum(array.nbytes for array in arrays)


def pack_prices(prices: Prices) -> Reply:
    """Pack; named symbols come first in each row of `Prices.best`."""
    there, named = prices.best >= 0, prices.partner >= 0
    return Reply(
        values=prices.values,
        counts=_shorten(there.sum(axis=1)),
        top=prices.best.shape[1],
        symbols=_shorten(prices.best[there]),
        shape=(prices.slack.shape[0], prices.slack.shape[1]),
        named=np.packbits(named),
        partners=_shorten(prices.partner[named]),
        slack=prices.slack[named],
    )


def unpack_prices(reply: Reply) -> Prices:
    """The prices that were packed, to the last bit."""
    best = np.full((len(reply.values), reply.top), -1)
    best[np.arange(reply.top) < reply.counts[:, None]] = reply.symbols
    size = reply.shape[0] * reply.shape[1]
    named = np.unpackbits(reply.named, count=size).astype(bool).reshape(reply.shape)
    slack, partner = np.full(reply.shape, np.inf), np.full(reply.shape, -1)
    slack[named], partner[named] = reply.slack, reply.partners
    return Prices(reply.values, best, slack, partner)


def _shorten(numbers: Any) -> Numbers:
    """The same numbers, not negative, in the smallest type that holds them."""
    largest = int(numbers.max(initial=0))
    return np.asarray(numbers, dtype=np.min_scalar_type(largest))
