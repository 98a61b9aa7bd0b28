"""What the contract tests need to know of a method, and promises that several of them make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from privpipe.fitted_names import schema_of
from privpipe.fitted_schema import NamedCodes
from privpipe.protocols import RecordMap
from tests.oracles import exact_loss
from tests.standard import make_standard

N_RECORDS = 1_200
"""Standard records that a method is fitted to."""

PROFILES = ("late",)
"""Their attributes, where a method reads such."""

TWO = {"desired": '["late"]', "confidential": '["income"]'}
THREE = {"desired": '["late"]', "confidential": '["party"]'}
BOTH = {"desired": '["late"]', "confidential": '["income", "party"]'}
NULL = "utility_budget = 0.5"
WIDE = "n_filtered = 300"


def promises_nothing(fitted: RecordMap) -> None:
    """No number, and no theorem of somebody else's method."""
    assert fitted.guarantee.kind == "none"
    assert fitted.guarantee.number is None
    assert fitted.guarantee.theorem.startswith(("None", "Hamm, JMLR 2017, equations"))


def keeps_the_budget(fitted: Any) -> None:
    """Theorems of Xu et al.: no record's desired prediction moves by more."""
    x, _ = make_standard(N_RECORDS)
    loss = exact_loss(fitted.predictor, x, fitted.apply(x))
    assert fitted.guarantee.kind == "utility_bound"
    assert fitted.guarantee.scope == "every record"
    assert loss.max() <= fitted.guarantee.number
    assert loss.max() > 0.5 * fitted.guarantee.number  # a promise, not a slogan


def name_codes(fitted: Any, x: Any) -> Any:
    """Codes with the names that they have in the collection of the fit; features as they are."""
    schema = schema_of(fitted)
    if fitted.reads == "features" or schema is None:
        return x
    return NamedCodes(x, schema.attributes)


@dataclass(frozen=True)
class Example:
    """One method.

    Parameters
    ----------
    options
        Of a fit on the standard records, without the name.
    promise
        What the guarantee means in numbers: an assertion about the fitted map.
    refused
        What its check refuses: lines of ``[method]``, keys of the configuration, the message.
    draws
        Whether what it fits draws.
    few
        Options of a fit on the records of `xu_records`, where these are others.
    fit
        A fit that gives the same again, where that of the method draws a key of its own.
    """

    options: Mapping[str, Any]
    promise: Callable[[Any], None] = promises_nothing
    refused: tuple[tuple[str, Mapping[str, str], str], ...] = ()
    draws: bool = False
    few: Mapping[str, Any] | None = None
    fit: Callable[..., RecordMap] | None = None
