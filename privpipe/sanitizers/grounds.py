"""What guarantees rest on and forecasts say: sentences of ``grounds.toml``, filled in."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from privpipe.protocols import Guarantee


@cache
def read_grounds() -> Any:
    """All sentences, by name; those of linear filters by method."""
    return tomllib.loads(Path(__file__).with_name("grounds.toml").read_text("utf-8"))


def say_grounds(name: str, /, **given: Any) -> str:
    """A sentence, with the numbers that it names."""
    return str(read_grounds()[name]).format(**given)


def say_promise(name: str, number: float | None = None, *, by: str = "", **given: Any) -> Guarantee:
    """A promise of ``[promises]``, with its number; `by` is the theorem that it names."""
    said = {key: text.format(by=by) for key, text in read_grounds()["promises"][name].items()}
    return Guarantee(number=number, **said, **given)


def refuse_dependent(promise: Guarantee) -> Guarantee:
    """No promise about a law where several records may be of one person; others stay.

    Bounds on the law count independent draws. Of the parameters those of the counts remain.
    """
    if promise.kind != "information_bound":
        return promise
    counted = ("plug_in", "plug_in_distortion", "n_fitted", "n_held_out", "n_released")
    pairs = [one for one in promise.parameters if one[0] in counted or one[0].endswith("_plug_in")]
    return say_promise("dependent", parameters=tuple(pairs))
