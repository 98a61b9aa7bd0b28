"""Records that join a collection: told by its features, variables and category tables."""

from __future__ import annotations

from dataclasses import replace

from privpipe.errors import InputError
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.ingestion.category_tables import POOLED, Coder
from privpipe.store.collections.ingestion.survey import Survey
from privpipe.store.sources.reading.source import RecordSource


def fit_survey(survey: Survey, source: RecordSource, like: CollectionSchema, where: str) -> Survey:
    """The survey of a source with the variables of the collection that it joins.

    Raises
    ------
    InputError
        If features or variables differ, a variable is of another kind, or it has categories that
        the collection does not know and does not pool.
    """
    found = {coder.variable.name: coder.variable for coder in survey.coders}
    wanted = {variable.name: variable for variable in like.variables}
    problem = ""
    if source.n_features != like.n_features:
        problem = f"has {source.n_features} features, the collection {like.n_features}"
    elif tuple(source.feature_names) != tuple(like.feature_names):
        problem = "has features of other names, or in another order"
    elif missing := sorted(set(wanted) - set(found)):
        problem = f"has no variable {', '.join(map(repr, missing))}"
    elif further := sorted(set(found) - set(wanted)):
        problem = f"has the variable {', '.join(map(repr, further))}, the collection has not"
    if problem:
        raise _drifted(where, problem)
    for name, variable in wanted.items():
        _check_kind(where, found[name], variable)
    coders = tuple(
        Coder(variable, has_pool=POOLED in (variable.categories or ()))
        for variable in like.variables
    )
    return replace(survey, coders=coders, guessed=())


def _check_kind(where: str, found: Variable, wanted: Variable) -> None:
    if wanted.categories is None or found.categories is None:
        if (wanted.categories is None) != (found.categories is None):
            kind = "numbers" if wanted.categories is None else "classes"
            option = "--numeric" if wanted.categories is None else "--categorical"
            raise _drifted(
                where, f"has {wanted.name!r} of another kind; it holds {kind} (give {option})"
            )
        return
    unseen = set(found.categories) - set(wanted.categories)
    if unseen and POOLED not in wanted.categories:
        raise _drifted(
            where, f"has {len(unseen)} categories of {wanted.name!r} that the collection has not"
        )


def _drifted(where: str, problem: str) -> InputError:
    return InputError(
        f"{where} {problem}.",
        remedy="Nothing was added. Fix the source, or begin a new growing collection.",
        code="schema-drift",
    )
