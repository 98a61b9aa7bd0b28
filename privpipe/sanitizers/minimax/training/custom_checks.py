"""What custom code must do, tried on drawn records before anything is trained.

A release is made in chunks, and a descent believes derivatives: rows must not change one another,
nothing may be drawn, and slopes must be those of finite differences.
"""

from collections.abc import Callable, Sequence

import numpy as np

from privpipe.errors import OptionError
from privpipe.option_values import is_trusted
from privpipe.protocols import Column, FloatArray, ShardSchema
from privpipe.sanitizers.minimax.training.custom_code import CustomCode, CustomLoss, call_custom

ROWS = 12
"""Records that are drawn."""
DIRECTIONS = 4
STEP = 1e-4
SHARE = 1e-4
"""Difference from finite differences that is allowed, as a share of the gradient."""
TRUNCATION = 10.0
"""Times the difference of two step sizes, allowed on top: kinks and curvature."""

Rows = tuple[FloatArray, ...]


def check_rows(
    code: CustomCode,
    what: str,
    function: Callable[..., Sequence[FloatArray]],
    rows: Rows,
    shapes: Sequence[tuple[int, ...]],
) -> Rows:
    """What a function from rows to rows gives, or a refusal.

    Parameters
    ----------
    code, what
        Whose function it is, and its name.
    function
        Takes `rows`, gives an array for each of `shapes`.
    rows : arrays of n rows each
    shapes
        Of what it must give.

    Raises
    ------
    OptionError
        If it raises or gives other shapes or NaN, changes what it is given, draws at random, or
        lets rows change one another.
    """

    def run(*rows: FloatArray) -> Rows:
        found = call_custom(code, what, function, *rows)
        return tuple(np.array(part, np.float64) for part in found)

    name, half = f"{code.name}.{what}", len(rows[0]) // 2
    before = [part.copy() for part in rows]
    found = run(*rows)
    if [part.shape for part in found] != list(shapes):
        raise refuse(
            code,
            f"{name} gives arrays of shapes {_list(part.shape for part in found)} for {2 * half} "
            f"records, not {_list(shapes)}.",
            "Return one row per record.",
        )
    check_finite(code, what, found)
    if not all(map(np.array_equal, rows, before)):
        raise refuse(code, f"{name} changes what it is given.", "Work on a copy.")
    if not all(map(np.array_equal, run(*rows), found)):
        raise refuse(
            code,
            f"{name} gives another result each time: it draws at random, or remembers.",
            f"Draw nothing in {what}; noise that protects is a method of its own.",
        )
    for some, whole in zip(run(*(part[:half] for part in rows)), found, strict=True):
        # Not bit for bit: a product of half the rows may round otherwise.
        allowed = 1e-8 * max(float(np.abs(whole).max()), 1e-300)
        if some.shape != whole[:half].shape or np.abs(some - whole[:half]).max() > allowed:
            raise refuse(
                code,
                f"{name} lets records change one another: half of them come out otherwise alone.",
                "Use what one record holds; records are read and released in chunks.",
            )
    return found


def check_finite(code: CustomCode, what: str, arrays: Rows) -> None:
    """Raise OptionError for values that are not finite, which drawn records should not give."""
    if not all(np.isfinite(part).all() for part in arrays):
        raise refuse(
            code,
            f"{code.name}.{what} gives values that are not finite (NaN or infinity) for standard "
            "normal records.",
            "Keep away from divisions by zero, logarithms and overflows.",
        )


def check_derivative(
    code: CustomCode,
    what: str,
    value: Callable[[FloatArray], FloatArray],
    at: FloatArray,
    slopes: Callable[[FloatArray], FloatArray],
    rng: np.random.Generator,
) -> None:
    """Compare directional derivatives with central differences of two step sizes.

    Parameters
    ----------
    value
        Of an array of the shape of `at`: numbers of any shape.
    at
        Where the derivative is taken.
    slopes
        The claimed derivatives of these numbers along a direction.

    Raises
    ------
    OptionError
        Saying whether sign, size or direction is wrong.
    """
    # In the units of what is moved; zeros move by as much as a tenth would.
    step = STEP * max(measure_size(at), 0.1)
    claimed: list[FloatArray] = []
    found: list[FloatArray] = []
    error_bound: list[FloatArray] = []
    for _ in range(DIRECTIONS):
        along = rng.standard_normal(at.shape)
        wide, narrow = (
            (value(at + h * along) - value(at - h * along)) / (2 * h) for h in (step, step / 2)
        )
        claimed.append(np.ravel(slopes(along)))
        found.append(np.ravel((4 * narrow - wide) / 3))  # extrapolated: the error is of order h^4
        error_bound.append(np.ravel(np.abs(wide - narrow)))
    pairs = (np.concatenate(part) for part in (claimed, found, error_bound))
    if wrong := _describe_difference(*pairs):
        raise refuse(
            code,
            f"{code.name}.{what} {wrong}.",
            "Give the gradient of the sum of the losses by z."
            if code.is_loss
            else "Give the gradient of sum(dz * apply(parameters, x)).",
        )


def check_loss(loss: CustomLoss | None, schema: ShardSchema) -> None:
    """Try a loss whose code is trusted on drawn outputs and records.

    Raises
    ------
    OptionError
        See `check_rows` and `check_derivative`.
    """
    if loss is None or not is_trusted(loss.code.sha256):  # a configuration one only looks at
        return
    rng = np.random.default_rng(0)
    z, x = (rng.standard_normal((ROWS, width)) for width in (loss.n_outputs, loss.n_features))
    given = (x, *(_draw_labels(rng, columns) for columns in (schema.desired, schema.confidential)))
    measure = loss.declared.measure
    shapes = (ROWS,), z.shape
    _, slopes = check_rows(loss.code, "measure", measure, (z, *given), shapes)
    # Record by record, so that no error of one is hidden by another.
    check_derivative(
        loss.code,
        "measure gives slopes by the outputs of which each",
        lambda z: np.array(measure(z, *given)[0]),
        z,
        lambda along: (slopes * along).sum(axis=1),
        rng,
    )


def _draw_labels(rng: np.random.Generator, columns: Sequence[Column]) -> FloatArray:
    """Numbers and codes of variables, (ROWS, n_variables)."""
    drawn = [
        rng.standard_normal(ROWS)
        if c.n_categories is None
        else rng.integers(c.n_categories, size=ROWS)
        for c in columns
    ]
    return np.reshape(drawn, (len(columns), ROWS)).T.astype(np.float64)


def measure_size(array: FloatArray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(array**2)))


def _describe_difference(claimed: FloatArray, found: FloatArray, error_bound: FloatArray) -> str:
    """How derivatives are wrong, in words; empty where they are right."""
    size = max(float(np.abs(found).max()), float(np.abs(claimed).max()))
    if (np.abs(claimed - found) <= SHARE * size + TRUNCATION * error_bound + 1e-10).all():
        return ""
    # The factor that fits best: what it leaves says whether the direction is right at least.
    ratio = float(claimed @ found / max(float(found @ found), 1e-300))
    off = float(np.abs(claimed - ratio * found).max()) / max(size, 1e-300)
    if off < 0.01 and abs(ratio + 1) < 0.01:
        return "has the wrong sign"
    if off < 0.01 and abs(ratio) > 1e-6:
        return f"is {ratio:.4g} times the derivative"
    worst = float(np.abs(claimed - found).max()) / max(size, 1e-300)
    return f"is not the derivative of what is computed: finite differences are {worst:.0%} off"


def _list(shapes: object) -> str:
    return ", ".join(map(str, shapes))  # type: ignore[call-overload]


def refuse(code: CustomCode, problem: str, remedy: str) -> OptionError:
    """The error of code that is wrong."""
    return OptionError(problem, remedy=remedy, code="loss-check" if code.is_loss else "filter-vjp")
