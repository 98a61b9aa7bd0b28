"""A loss of the user's own: a term of Phi by what a filter gives for each record, without a head.

Heads are solved exactly because their losses are known to be convex; of a declared loss nothing is
known. So it reads the outputs themselves, and what it would learn is a filter's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray, ShardSchema
from privpipe.sanitizers.minimax.own.declared_family import Setting
from privpipe.sanitizers.minimax.own.filter_code import FilterCode
from privpipe.sanitizers.minimax.own.vjp_check import describe_difference

ROWS = 12
DIRECTIONS = 4
STEP = 1e-4


class DeclaredLoss(Protocol):
    """What a loss of one's own must have; ``Class(n_features, n_outputs, **settings)`` makes it.

    Records are rows, of float64. Phi has the mean of the losses, times the weight that the options
    give, and training lowers it; no record changes the loss of another.
    """

    def measure(
        self, z: FloatArray, x: FloatArray, desired: FloatArray, confidential: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Losses (n_records,) and their slopes by the outputs (n_records, n_outputs).

        Parameters
        ----------
        z : (n_records, n_outputs)
            What the filter gives.
        x : (n_records, n_features)
            The records.
        desired, confidential : (n_records, n_variables)
            Numbers, and codes of categorical variables.
        """
        ...


@dataclass(frozen=True)
class OwnLoss:
    """A declared loss as a value, which travels with its task.

    Parameters
    ----------
    code, settings
        What the class is, and what it is made with.
    n_features, n_outputs, n_desired
        Shape of the records, of what is made of them, and of their variables.
    """

    code: FilterCode
    settings: tuple[tuple[str, Setting], ...]
    n_features: int
    n_outputs: int
    n_desired: int

    @classmethod
    def of(
        cls,
        code: FilterCode,
        settings: Mapping[str, Setting],
        schema: ShardSchema,
        n_outputs: int,
    ) -> OwnLoss:
        """The loss of a filter of so many outputs."""
        given = tuple(sorted(settings.items()))
        return cls(code, given, schema.n_features, n_outputs, len(schema.desired))

    def measure(
        self, z: FloatArray, x: FloatArray, labels: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Losses and slopes of records whose variables are `labels`, desired ones first.

        Raises
        ------
        InputError
            If some are not finite; the message counts them.
        """
        found = _build_loss(self).measure(
            z.copy(), x, labels[:, : self.n_desired], labels[:, self.n_desired :]
        )
        losses, slopes = (np.array(part, np.float64) for part in found)
        bad = np.count_nonzero(~(np.isfinite(losses) & np.isfinite(slopes).all(axis=1)))
        if bad:
            raise InputError(
                f"The loss {self.code.name} gives values that are not finite for {bad} of "
                f"{len(z)} records.",
                remedy="Bound what it computes: keep away from divisions by zero and logarithms.",
                code="loss-nonfinite",
            )
        return losses, slopes


@lru_cache(maxsize=8)
def _build_loss(loss: OwnLoss) -> DeclaredLoss:
    """Make the loss of a declared class, once per process."""
    name, kind = loss.code.name, loss.code.load()
    if not callable(getattr(kind, "measure", None)):
        raise _refuse(
            f"The class {name} has no measure.",
            "Give it measure(z, x, desired, confidential): losses, and slopes by z.",
        )
    try:
        return cast(DeclaredLoss, kind(loss.n_features, loss.n_outputs, **dict(loss.settings)))
    except Exception as error:
        raise _refuse(
            f"{name}.__init__ raises {type(error).__name__}: {error}",
            "Call it in Python and fix what is wrong.",
        ) from None


def check_loss(loss: OwnLoss, schema: ShardSchema, seed: int = 0) -> None:
    """Refuse a loss whose slopes are not its derivative, on drawn outputs and records.

    Raises
    ------
    OptionError
        With what is wrong: shape, NaN, drawing at random, records that change one another, or the
        sign, size or direction of the slopes.
    """
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((ROWS, loss.n_outputs))
    given = (rng.standard_normal((ROWS, loss.n_features)), *_draw_labels(rng, schema))
    losses, slopes = _check_values(loss, z, given)
    pairs = []
    for _ in range(DIRECTIONS):
        along = rng.standard_normal(z.shape)
        wide, narrow = (_differ(loss, z, given, h * along) / h for h in (STEP, STEP / 2))
        # Record by record, so that no error of one is hidden by another.
        said = (slopes * along).sum(axis=1)
        pairs.append(np.column_stack([said, (4 * narrow - wide) / 3, np.abs(wide - narrow)]))
    if wrong := describe_difference(np.concatenate(pairs)):
        raise _refuse(
            f"{loss.code.name}.measure gives slopes by the outputs of which each {wrong}.",
            "They must be the gradient of the losses' sum by z.",
        )
    _check_alone(loss, z, given, losses)


def _draw_labels(rng: np.random.Generator, schema: ShardSchema) -> tuple[FloatArray, ...]:
    return tuple(
        np.column_stack(
            [
                rng.standard_normal(ROWS)
                if c.n_categories is None
                else rng.integers(0, c.n_categories, ROWS).astype(np.float64)
                for c in columns
            ]
        )
        if columns
        else np.empty((ROWS, 0))
        for columns in (schema.desired, schema.confidential)
    )


def _run(loss: OwnLoss, z: FloatArray, given: tuple[FloatArray, ...]) -> tuple[Any, Any]:
    """Run code of the user's on drawn records, whose values may be shown."""
    declared = _build_loss(loss)
    try:
        losses, slopes = declared.measure(z, *given)
    except Exception as error:
        raise _refuse(
            f"{loss.code.name}.measure raises {type(error).__name__}: {error}",
            "Call it in Python on random records and fix what is wrong.",
        ) from None
    return np.array(losses), np.array(slopes)


def _check_values(
    loss: OwnLoss, z: FloatArray, given: tuple[FloatArray, ...]
) -> tuple[FloatArray, FloatArray]:
    name, before = loss.code.name, [part.copy() for part in (z, *given)]
    losses, slopes = _run(loss, z, given)
    if losses.shape != (len(z),) or slopes.shape != z.shape:
        raise _refuse(
            f"{name}.measure gives arrays of shapes {losses.shape} and {slopes.shape} for "
            f"{len(z)} records of {z.shape[1]} outputs.",
            f"Return a loss per record, {(len(z),)}, and slopes by the outputs, {z.shape}.",
        )
    if not (np.isfinite(losses).all() and np.isfinite(slopes).all()):
        raise _refuse(
            f"{name}.measure gives values that are not finite (NaN or infinity) for standard "
            "normal outputs.",
            "Keep away from divisions by zero, logarithms and overflows.",
        )
    if not all(map(np.array_equal, (z, *given), before)):
        raise _refuse(f"{name}.measure changes what it is given.", "Work on a copy.")
    again = _run(loss, z, given)
    if not (np.array_equal(again[0], losses) and np.array_equal(again[1], slopes)):
        raise _refuse(
            f"{name}.measure gives another result each time: it draws at random, or remembers.",
            "Draw nothing in measure.",
        )
    return losses, slopes


def _differ(
    loss: OwnLoss, z: FloatArray, given: tuple[FloatArray, ...], step: FloatArray
) -> FloatArray:
    """Half of what the losses differ by, a step up and a step down."""
    ends = [np.asarray(_run(loss, z + sign * step, given)[0]) for sign in (1.0, -1.0)]
    return np.asarray((ends[0] - ends[1]) / 2)


def _check_alone(
    loss: OwnLoss, z: FloatArray, given: tuple[FloatArray, ...], losses: FloatArray
) -> None:
    half = slice(0, ROWS // 2)
    some = _run(loss, z[half], tuple(part[half] for part in given))[0]
    if some.shape != losses[half].shape or not np.allclose(some, losses[half], rtol=1e-8):
        raise _refuse(
            f"{loss.code.name}.measure lets records change one another: half of them come out "
            "otherwise alone.",
            "Use what one record holds; records are read in blocks.",
        )


def _refuse(problem: str, remedy: str) -> OptionError:
    return OptionError(problem, remedy=remedy, code="loss-check")
