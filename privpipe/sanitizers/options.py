"""What the options of every method know, and how they are made from what a caller gave.

How the values themselves are read is the same for all options: see `privpipe.option_values`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, dataclass_transform

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import OptionError
from privpipe.numerics.moments import check_products
from privpipe.option_values import FORBID, Options
from privpipe.protocols import Column, DTypeLike, IntArray, RecordMap, Role, Shards, ShardSchema

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def method_options(cls: type[T]) -> type[T]:
    """Check the fields of a method's options where they are made: frozen, by name, none unknown."""
    made: Any = options_dataclass(frozen=True, kw_only=True, config=FORBID)(cls)
    return made  # type: ignore[no-any-return]  # the class itself


@method_options
class MethodOptions(Options):
    """Options of a method. What only some methods have or do is nothing here."""

    learns: ClassVar[bool] = True
    """Whether a fit reads records: what it makes is otherwise known before."""
    in_rounds: ClassVar[bool] = False
    """Whether it reads all records again and again; see `Shards.oracle`."""
    weighs: ClassVar[bool] = False
    """Whether it counts records by their weights; the others refuse weights."""
    multiplies: ClassVar[bool] = False
    """Whether products of features are summed up: of too many their matrix has no place."""
    scales: ClassVar[bool] = False
    """Whether what it learns depends on the units of the features, which may be standardised."""
    prices: ClassVar[bool] = False
    """Whether `fit` takes a pricing oracle, `price`, whose searches a cluster may share; the option
    `pricing` says where."""
    is_judged: ClassVar[bool] = False
    """Whether `fit` takes `judges`, records that the audit holds out and the share of all that they
    are: its promise is measured on them."""
    forgets_keys: ClassVar[bool] = False
    """Whether the keys of its draws are destroyed as soon as the release is published."""
    uses: ClassVar[frozenset[Role]] = frozenset()
    """Roles that it always needs; records without them are left out."""

    def needs(self) -> frozenset[Role]:
        """Roles that must be named in the configuration."""
        return self.uses

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """Roles of which a record must have every value to be learned from.

        For each part of the fit that leaves records out by itself: those that are needed, in one.
        """
        return (self.needs(),) if self.needs() else ()

    def columns(self) -> Mapping[Role, tuple[str, ...]]:
        """Names of variables that the options themselves name, by role."""
        return {}

    def files(self) -> Mapping[str, str]:
        """URLs of files of arrays that they name, by argument of `fit`."""
        return {}

    def check_size(self, schema: ShardSchema) -> None:
        """Refuse more features than the fit can hold products of, before anything is read."""
        if self.multiplies and not self.files():
            check_products(schema.n_features)

    def examine(self, shards: Shards) -> None:
        """Refuse training records that the fit would refuse, beyond what `check` knows of."""

    def may_factor(self) -> bool:
        """Whether coordinates can be released, of which readers reconstruct records by a basis."""
        return False

    def factor(self, fitted: Any, dtype: DTypeLike) -> RecordMap:
        """The map that releases coordinates, of a fitted one."""
        raise NotImplementedError

    def concentrates(self) -> float | None:
        """Rho that a release costs; None where it is that of its epsilon, or no promise is made."""
        return None

    @property
    def grows(self) -> bool:
        """Whether a fit continues the model of the first partitions of a collection."""
        return False

    def consumes(self) -> float | None:
        """The epsilon that each released record consumes; None without differential privacy."""
        return None

    @classmethod
    def suggest(
        cls,
        confidential: Sequence[str],
        columns: Sequence[Column],
        read: Callable[[tuple[str, ...]], IntArray],
    ) -> Mapping[str, Any]:
        """Options of a first configuration where only what is to be hidden is named.

        Parameters
        ----------
        confidential
            Names of what is hidden.
        columns
            All variables.
        read
            Codes of named ones from a few chunks, (n_records, n_variables).

        Returns
        -------
        options
            Empty where the method does not suit.
        """
        return {}


def make_options(kind: type[T], given: Mapping[str, Any], method: str) -> T:
    """Validate options; what a caller chose is no record and may be shown.

    Parameters
    ----------
    kind
        The options class.
    given
        Options by name.
    method
        Name of the method, for messages.

    Raises
    ------
    OptionError
        With every option that is wrong, its value, and what is allowed.

    Examples
    --------
    >>> from privpipe.sanitizers.null_space.algorithms import NullSpaceOptions
    >>> make_options(NullSpaceOptions, {"name": "null_space", "utility_budget": 1}, "x").rule
    'greedy'
    """
    try:
        return TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        # Inputs may hold a URL with a password: what is shown is chosen below.
        found = error.errors(include_input=False)
    said = ((one["loc"], one["msg"].removeprefix("Value error, ")) for one in found)
    problems = [_describe(*one, given) for one in said]
    problem = f"The options of {method!r} are wrong: {'; '.join(problems)}."
    raise OptionError(problem, remedy=f"See privpipe.sanitizers' {kind.__name__}.")


def _describe(loc: tuple[int | str, ...], message: str, given: Mapping[str, Any]) -> str:
    name = ".".join(map(str, loc))
    value = given.get(str(loc[0])) if loc else None
    is_plain = isinstance(value, str | int | float | bool) and "://" not in str(value)
    shown = f" is {value!r}" if is_plain else ""  # a URL may hold a password
    return f"{name}{shown}: {message}"
