"""What a round of pricing sends: all that is found among workers, what is used to the driver.

Numbers of symbols and columns take as few bytes as hold the largest; which of them are there is
given by a count per column and a bit per symbol and group. Nothing is rounded. Blocks are merged
where they were priced; of the whole the driver learns what all prices sum to, the symbols and
partners that are near, and the slack of those that undercut their column: at most 8 bytes per
symbol and private value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.numerics.mapping.pricing.pair_pricing import (
    Prices,
    PricingQuestion,
    merge_prices,
    sum_prices,
)
from privpipe.protocols import FloatArray

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
    best = np.full((len(reply.counts), reply.top), -1)
    best[np.arange(reply.top) < reply.counts[:, None]] = _lengthen(reply.symbols)
    size = reply.shape[0] * reply.shape[1]
    named = np.unpackbits(reply.named, count=size).astype(bool).reshape(reply.shape)
    slack, partner = np.full(reply.shape, np.inf), np.full(reply.shape, -1)
    slack[named], partner[named] = reply.slack, _lengthen(reply.partners)
    return Prices(reply.values, best, slack, partner)


@dataclass(frozen=True, eq=False)
class PriceReply:
    """Prices of all columns, as far as a question wants them.

    Parameters
    ----------
    total
        What the prices weighed by the columns' masses sum to.
    reply
        The rest; without prices where they are not wanted, and slack of those below 0 alone.
    below
        A bit for each partner that is named: whether its slack is below 0.
    """

    total: float
    reply: Reply
    below: Bytes

    @property
    def n_bytes(self) -> int:
        """Of its arrays and its number."""
        return 8 + self.reply.n_bytes + self.below.nbytes

    def prices(self) -> Prices:
        """See `Prices` for what is left out."""
        reply = self.reply
        below = np.unpackbits(self.below, count=len(reply.partners)).astype(bool)
        slack = np.zeros(len(below))
        slack[below] = reply.slack
        return replace(unpack_prices(replace(reply, slack=slack)), total=self.total)


def merge_replies(replies: Sequence[Reply]) -> Reply:
    """Replies of consecutive blocks as one; partners are counted within the whole already."""
    return pack_prices(
        merge_prices([unpack_prices(reply) for reply in replies], [0] * len(replies))
    )


def answer_round(
    replies: Sequence[Reply], mass: FloatArray, question: PricingQuestion
) -> PriceReply:
    """Worker side: what the driver learns of a round.

    Parameters
    ----------
    replies
        In the order of their columns; all of them.
    mass : (n_columns,)
    question
        Its flags alone are read.
    """
    found = merge_prices([unpack_prices(reply) for reply in replies], [0] * len(replies))
    whole, total = pack_prices(found), sum_prices(mass, found)
    below = whole.slack < 0.0
    reply = replace(whole, slack=whole.slack[below])
    if not question.values:
        reply = replace(reply, values=reply.values[:0])
        if not question.partners:  # the sum is all that is used
            reply = replace(reply, counts=reply.counts[:0], symbols=reply.symbols[:0])
    return PriceReply(total, reply, np.packbits(below))


def _shorten(numbers: Any) -> Numbers:
    """The same numbers, not negative, in the smallest type that holds them."""
    largest = int(numbers.max(initial=0))
    if 2**16 <= largest < 2**24:  # three bytes, for which there is no type
        wide = np.asarray(numbers, "<u4").reshape(-1, 1)
        return np.ascontiguousarray(wide.view(np.uint8)[:, :3])
    return np.asarray(numbers, dtype=np.min_scalar_type(largest))


def _lengthen(numbers: Numbers) -> Numbers:
    """What was shortened."""
    if numbers.ndim == 1:
        return numbers
    wide = np.zeros((len(numbers), 4), np.uint8)
    wide[:, :3] = numbers
    return wide.view("<u4").ravel()
