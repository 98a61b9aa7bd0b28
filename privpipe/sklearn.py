"""Row-wise maps as scikit-learn transformers, one per method: a thin layer above the sanitizers.

``fit`` learns a map by the method's own fit from records in memory, ``transform`` applies it. The
fitted map is `map_` and can be stored with `privpipe.write_model` as any other.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics._scorer import _Scorer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import columns_of, distinct_columns, find_missing, with_schema
from privpipe.fitted_schema import FittedSchema
from privpipe.numerics.finite import as_array, fill_masked
from privpipe.protocols import AnyArray, ArrayLike, Guarantee, Method, RecordMap
from privpipe.records.memory import Records
from privpipe.records.schema import suggest
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options


class RecordSanitizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # untyped bases
    """Learn a sanitiser of records, and apply it.

    Parameters
    ----------
    method
        Name of a method that releases one record per record; see `privpipe.sanitizers.METHODS`.
    options
        The method's options but its name, as in ``[method]`` of a configuration.
    confidential_columns
        Columns of `X` that are confidential, by number, or by name in a data frame, for pipelines
        that hand over nothing beside `X` and `y`. They are not released.

    Attributes
    ----------
    map_ : RecordMap
        The fitted map.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : (n_features,)
        Their names, when `fit` was given a data frame.

    Notes
    -----
    Guarantee: that of the fitted map, `guarantee_`.

    Examples
    --------
    >>> x = np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.0], [6.0, 5.0]])
    >>> cleaner = RecordSanitizer(options={"utility_budget": 0.0}).fit(x, x[:, 0] - x[:, 1])
    >>> cleaner.transform(x).round(6)
    array([[4.375, 2.375],
           [4.375, 2.375],
           [5.375, 1.375],
           [3.875, 2.875]])
    """

    # With metadata routing it is handed over wherever it is given.
    __metadata_request__fit = {"confidential": True}  # noqa: RUF012  # scikit-learn's name

    def __init__(
        self,
        method: str = "null_space",
        options: Mapping[str, Any] | None = None,
        confidential_columns: Sequence[str | int] | None = None,
    ) -> None:
        self.method = method
        self.options = options
        self.confidential_columns = confidential_columns

    def fit(
        self,
        X: ArrayLike,  # noqa: N803  scikit-learn's name
        y: ArrayLike,
        confidential: ArrayLike | None = None,
    ) -> Self:
        """Learn the map.

        Parameters
        ----------
        X : (n_records, n_features)
            Records; of Dask (with `y` and `confidential`) they are read part by part.
        y : (n_records,) or (n_records, n_desired)
            Desired variables: numbers, or classes as text or booleans.
        confidential : (n_records,) or (n_records, n_confidential), optional
            Confidential variables, for methods that learn from them.

        Returns
        -------
        self

        Raises
        ------
        OptionError
            If there is no such method, its options are wrong, or the confidential variable is
            given twice.
        InputError
            If a variable that the method needs is missing, or records do not fit.
        """
        method, options = self._read_options()
        given = _as_frame(X)
        lazy, x, target = hasattr(X, "dask"), fill_masked(given, "X"), fill_masked(y, "y")
        if self.confidential_columns is not None and confidential is not None:
            raise OptionError(
                "The confidential variable is given twice.",
                remedy="Give confidential_columns, or confidential where it is fitted; where only "
                "scores are to have it, say set_fit_request(confidential=False).",
            )
        if lazy:
            self.n_features_in_ = _count_columns(x)
            self.__dict__.pop("feature_names_in_", None)  # of another fit
            if found := distinct_columns(x):
                self.feature_names_in_ = np.array(found, object)
        else:
            checks = {"y": target, "multi_output": True, "ensure_min_samples": 2}
            x, target = _validate(self, self._blank(x), **checks)
        names = tuple(getattr(self, "feature_names_in_", ()))
        released, secret = self._divide(self.n_features_in_, names)
        if secret:  # as it is given: checked numbers say no more whether they were classes
            whole = given if lazy or hasattr(given, "iloc") else np.asarray(given)
            confidential, x = _take(whole, secret), _take(x, released)
        roles = {"desired": target, "confidential": confidential}
        missing = sorted(role for role in options.needs() if roles.get(role) is None)
        if missing:
            problem = f"The method {method.name!r} needs {' and '.join(missing)}."
            remedy = "Give y for desired, confidential for confidential."
            raise InputError(problem, remedy=remedy, code="missing-variable")
        if lazy:
            records: Any = _collect(x, roles)
        else:
            # As it is given, too: classes with a missing one beside, or beside numbers.
            desired = None if target is None else y
            records = Records(x, desired=desired, confidential=confidential)
        schema = replace(records.schema, feature_names=tuple(names[j] for j in released if names))
        self.map_: RecordMap = with_schema(method.fit(records, options), FittedSchema.of(schema))
        return self

    def transform(
        self,
        X: ArrayLike,  # noqa: N803  scikit-learn's name
    ) -> AnyArray:
        """Apply the map.

        Parameters
        ----------
        X : (n_records, n_features)
            Records; a data frame has the columns of the fit, in the same order.

        Returns
        -------
        released : (n_records, n_features_out)
            In the floating dtype of `X`.

        Raises
        ------
        InputError
            If columns of a data frame have other names, or another order.
        OptionError
            If the map draws: release such records with the pipeline, which keeps the key.
        """
        check_is_fitted(self)
        names = tuple(getattr(self, "feature_names_in_", ()))
        released, secret = self._divide(self.n_features_in_, names)
        if not hasattr(X, "dask"):
            x = _validate(self, self._blank(fill_masked(_as_frame(X), "X")), reset=False)
            return self.map_.apply(_take(x, released) if secret else x)
        # As lazy as it is. Of an extra, as Dask.
        from privpipe.cluster.lazy import apply_lazily

        lazy: Any = X
        if found := columns_of(lazy) if names else ():  # in any order
            apart = {names[j] for j in secret}
            return self.map_.apply(lazy[[one for one in found if one not in apart]])
        if _count_columns(lazy) != self.n_features_in_:
            problem = f"Records have {lazy.shape[1]} columns, the fit had {self.n_features_in_}."
            remedy = "Give the columns of the fit, in its order."
            raise InputError(problem, remedy=remedy, code="shape")
        done: Any = apply_lazily(self.map_, _take(lazy, released))
        return done  # type: ignore[no-any-return]  # lazy, as it was

    def get_feature_names_out(self, input_features: ArrayLike | None = None) -> Any:
        """Names of the released features: the raw ones where their number stays."""
        check_is_fitted(self)
        released, _ = self._divide(self.n_features_in_, getattr(self, "feature_names_in_", ()))
        if self.map_.keeps_features and self.map_.n_features_out == len(released):
            return OneToOneFeatureMixin.get_feature_names_out(self, input_features)[released]
        return np.array([f"released_{j}" for j in range(self.map_.n_features_out)], dtype=object)

    @property
    def guarantee_(self) -> Guarantee:
        """What the fitted map promises."""
        check_is_fitted(self)
        return self.map_.guarantee

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _divide(self, n_features: int, names: Sequence[str]) -> tuple[list[int], list[int]]:
        """Columns that are released, and those that are confidential, by number."""
        known = dict(zip(names, range(n_features), strict=False))
        given: Any = () if self.confidential_columns is None else self.confidential_columns
        if isinstance(given, str) or not np.iterable(given):
            problem = f"confidential_columns is of type {type(given).__name__}."
            raise OptionError(problem, remedy='Give a list of columns, such as ["sex"] or [0].')
        secret = [known.get(one, one) for one in given]
        for name, column in zip(given, secret, strict=True):
            is_number = isinstance(column, int | np.integer) and not isinstance(column, bool)
            if not is_number or column not in range(n_features):
                problem = f"There is no confidential column {name!r}{suggest(str(name), [*known])}"
                remedy = f"Give numbers below {n_features}, or names of a data frame's columns."
                raise OptionError(problem, remedy=remedy)
        released = [column for column in range(n_features) if column not in secret]
        if not released:
            problem = f"Of n_features = {n_features} none is left beside the confidential ones."
            raise InputError(problem, remedy="Leave one to be released.", code="shape")
        return released, secret

    def _blank(self, x: Any) -> Any:
        """A frame whose confidential columns need be no numbers."""
        if self.confidential_columns is None or not hasattr(x, "iloc"):
            return x
        blank = x.copy(deep=False)
        for column in self._divide(x.shape[1], columns_of(x))[1]:
            blank.isetitem(column, 0.0)
        return blank

    def _give_options(self) -> Any:
        """Options that were given, by name."""
        return self.options or {}

    def _read_options(self) -> tuple[Method, Any]:
        # Codes of named attributes are no matrix, and surrogates no rows.
        known = [
            name
            for name, found in METHODS.items()
            if found.releases == "rows"
            and "attributes" not in {one.name for one in fields(found.options)}
        ]
        method = METHODS[self.method] if self.method in known else None
        if method is None:
            raise OptionError(
                f"There is no row-wise method {self.method!r}{suggest(str(self.method), known)}",
                remedy=f"Use one of: {', '.join(known)}.",
            )
        options = self._give_options()
        if not isinstance(options, Mapping):
            remedy = 'Give a dictionary, such as {"utility_budget": 0.01}.'
            raise OptionError(f"options is of type {type(options).__name__}.", remedy=remedy)
        return method, make_options(method.options, {**options, "name": self.method}, self.method)


class MethodSanitizer(RecordSanitizer):
    """A transformer of one method, whose options are its parameters.

    So that `GridSearchCV` varies them, and `clone` and ``set_params`` know them. Every subclass is
    made of a method's row: `NullSpaceCleaner` of ``null_space``, as ``NullSpaceCleaner(
    utility_budget=0.01)``. Fits are those of `RecordSanitizer`.
    """

    method: str = ""

    def __init__(self, **options: Any) -> None:
        for name in self._get_param_names():
            # None: the method's own default, or what has to be given.
            setattr(self, name, options.pop(name, None))
        if options:
            raise OptionError(
                f"The method {self.method!r} has no option {sorted(options)[0]!r}"
                f"{suggest(sorted(options)[0], self._get_param_names())}",
                remedy=f"It has: {', '.join(self._get_param_names())}.",
            )

    def _give_options(self) -> Mapping[str, Any]:
        given = {name: getattr(self, name) for name in self._get_option_names()}
        return {name: one for name, one in given.items() if one is not None}

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return [*cls._get_option_names(), "confidential_columns"]

    @classmethod
    def _get_option_names(cls) -> list[str]:
        found = fields(METHODS[cls.method].options) if cls.method else ()
        return sorted(one.name for one in found if one.name != "name")


TRANSFORMERS = tomllib.loads(Path(__file__).with_name("sklearn.toml").read_text("utf-8"))
"""Transformers by name, and the method of each."""


def __getattr__(name: str) -> Any:
    """A transformer of a method, made when it is first named: the table of methods is large."""
    if name not in TRANSFORMERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    about = {
        "method": TRANSFORMERS[name],
        "__module__": __name__,
        "__doc__": f"The method `{TRANSFORMERS[name]}` as a transformer; see `MethodSanitizer`.",
    }
    made: Any = type(name, (MethodSanitizer,), about)

    def set_options(self: Any, **options: Any) -> None:
        MethodSanitizer.__init__(self, **options)

    # Of a constructor scikit-learn reads the signature.
    names = made._get_param_names()
    parameters = [Parameter(one, Parameter.KEYWORD_ONLY, default=None) for one in names]
    about_self = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)
    vars(set_options)["__signature__"] = Signature([about_self, *parameters])
    made.__init__ = set_options
    # In the module, so that pickles find it.
    globals()[name] = made
    return made


N_FOLDS = 5
"""Of the cross-validation of scores."""


def score_privacy(estimator: Any, x: ArrayLike, y: ArrayLike, confidential: ArrayLike) -> float:
    """Minus the advantage of logistic regression on a confidential variable: 0 reveals nothing.

    Parameters
    ----------
    estimator
        A fitted transformer, or a pipeline of which the last step transforms.
    x : (n_records, n_features)
        Records that the fit did not see.
    y
        Not looked at; scorers are given it.
    confidential : (n_records,)
        Classes; records without one are left out.

    Returns
    -------
    score
        Minus the balanced accuracy of five-fold cross-validation beyond guessing, from -1 to 0.

    Notes
    -----
    It chooses among budgets and is no audit: `measure_attacks` has stronger adversaries.
    """
    secret = np.asarray(fill_masked(confidential, "confidential"))
    known = ~find_missing(secret)
    secret = secret[known]
    least = int(np.unique(secret, return_counts=True)[1].min())
    if least < N_FOLDS:
        raise InputError(
            f"A confidential class has {least} records, of which no {N_FOLDS} folds can be made.",
            remedy="Score more records, or leave rare classes out.",
            code="too_few_records",
        )
    attack = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000))
    released = _release(estimator, x)[known]
    found = cross_val_score(attack, released, secret, cv=N_FOLDS, scoring="balanced_accuracy")
    chance = 1 / len(np.unique(secret))
    # NaN, where an attack fails, stays.
    return float(np.minimum(0.0, -(np.mean(found) - chance) / (1 - chance)))


def score_utility(estimator: Any, x: ArrayLike, y: ArrayLike, **_: Any) -> float:
    """How well the target is predicted from released records: accuracy, or R squared of numbers.

    Of five-fold cross-validation, by logistic or ridge regression; parameters as `score_privacy`.
    """
    records = Records(_release(estimator, x), desired=y)
    shard, found = next(iter(records.shards())), []
    for column, values in zip(records.schema.desired, shard.desired.T, strict=True):
        # As a fit reads it; but whole numbers that are rare in a fold may be many in a fit.
        is_rare = np.unique(values, return_counts=True)[1].min() < N_FOLDS
        is_whole = all(name.lstrip("-").isdecimal() for name in column.categories or ())
        is_number = not column.is_categorical or (is_rare and is_whole)
        model = Ridge() if is_number else LogisticRegression(max_iter=1_000)
        predict = make_pipeline(StandardScaler(), model)
        found.append(np.mean(cross_val_score(predict, shard.features, values, cv=N_FOLDS)))
    return float(np.mean(found))


def _release(estimator: Any, x: ArrayLike) -> Any:
    """What is released of records: of a pipeline that predicts, by the steps before."""
    steps = estimator if hasattr(estimator, "transform") else estimator[:-1]
    return np.asarray(steps.transform(x))


class _ReleaseScorer(_Scorer):  # type: ignore[misc]  # an untyped base
    """A score of a transformer instead of predictions."""

    # Requested by itself: no one needs `set_score_request`.
    __metadata_request__score = {"confidential": True}  # noqa: RUF012  # scikit-learn's name

    def __init__(self, score: Any) -> None:
        # What scikit-learn's scorers hold; ours reads the transformer instead. Where there are
        # several scores an estimator must have one of these methods.
        super().__init__(float, 1, {}, ["transform", "predict"])
        self.score = score

    def _score(self, _: Any, estimator: Any, X: Any, y_true: Any, **given: Any) -> float:  # noqa: N803
        if "confidential" not in given:
            raise OptionError(
                "The scores are given no confidential variable.",
                remedy="Say sklearn.set_config(enable_metadata_routing=True), and give the search "
                "confidential= where it is fitted.",
            )
        return float(self.score(estimator, X, y_true, **given))


scorers = {"privacy": _ReleaseScorer(score_privacy), "utility": _ReleaseScorer(score_utility)}
"""For ``scoring=`` of model selection, with ``refit="privacy"``: what is left of a confidential
variable, and of the target. With metadata routing, which hands ``confidential=`` over."""


QUOTED = re.compile(r"(?s)array=.*?\.\n|(?<=string to float).*|(?<=data not supported).*")
"""Where scikit-learn's messages quote values of records."""


def _validate(estimator: RecordSanitizer, x: ArrayLike, **checks: Any) -> Any:
    """Validate as scikit-learn does, but without the values that its messages quote."""
    message = ""
    try:
        return validate_data(estimator, x, dtype=[np.float64, np.float32], **checks)
    except ValueError as error:
        message = str(error)
    except (np.exceptions.DTypePromotionError, OverflowError):  # dates, integers that are no float
        message = "X holds something that is not a real number."
    raise InputError(QUOTED.sub("", message), code="shape")


def _count_columns(x: Any) -> int:
    """Of a matrix or frame, lazy ones too."""
    if np.ndim(x) == 2:
        return int(x.shape[1])
    problem = f"Records have {np.ndim(x)} dimensions."
    raise InputError(problem, remedy="Give a row per record.", code="shape")


def _as_frame(x: Any) -> Any:
    """A table of polars or Arrow, or lists, as a frame: each column has a type of its own."""
    if hasattr(x, "to_pandas"):
        return x.to_pandas()
    rows = x if type(x) is list else ()
    widths = {len(row) if isinstance(row, list | tuple) else 0 for row in rows}
    if len(widths) != 1 or 0 in widths:  # pandas would fill up rows, and take numbers for a column
        return x
    import pandas as pd  # slow to load

    return pd.DataFrame(x)


def _take(x: Any, columns: list[int]) -> Any:
    """Columns of a matrix or frame by number, lazy ones too."""
    return x.iloc[:, columns] if hasattr(x, "iloc") else x[:, columns]


def _collect(x: Any, roles: Mapping[str, Any]) -> Any:
    """Dask's arrays or frames as a collection, which computes them part by part."""
    import xarray as xr

    from privpipe.store.collections.frame_collection import from_xarray

    given = {"features": x} | {role: one for role, one in roles.items() if one is not None}
    arrays: dict[str, Any] = {}
    for role, one in given.items():
        lazy = one.to_dask_array(lengths=True) if hasattr(one, "to_dask_array") else one
        arrays[role] = lazy if hasattr(lazy, "dask") else as_array(lazy, role)
        n, shape = arrays["features"].shape[0], arrays[role].shape
        # A length that is not known is nan, which is no length, its own neither.
        if shape[:1] != (n,) or len(shape) > 2 or n != n:
            name = {"features": "X", "desired": "y"}.get(role, role)
            problem = f"{name} has shape {shape}, where X has {n} rows."
            remedy = "Give one row per record; compute_chunk_sizes() finds lengths of nan."
            raise InputError(problem, remedy=remedy, code="shape")
    found: Any = {role: (("record", role)[: one.ndim], one) for role, one in arrays.items()}
    # A column is a variable, a matrix one for each of its columns.
    names: Any = {
        role: [f"{role}_{j}" for j in range(one.shape[1])] if one.ndim > 1 else [role]
        for role, one in arrays.items()
        if role != "features"
    }
    return from_xarray(xr.Dataset(found), **names)
