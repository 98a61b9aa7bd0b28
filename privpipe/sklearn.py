"""Row-wise maps as scikit-learn transformers: a thin layer above the sanitizers.

``fit`` learns a map by the method's own fit from records in memory, ``transform`` applies it;
the fitted map is `map_` and can be stored with `privpipe.write_model` as any other.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import with_schema
from privpipe.fitted_schema import FittedSchema
from privpipe.protocols import Guarantee, Method, RecordMap
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

    def __init__(
        self, method: str = "null_space", options: Mapping[str, Any] | None = None
    ) -> None:
        self.method = method
        self.options = options

    def fit(
        self,
        X: npt.ArrayLike,  # noqa: N803  scikit-learn's name
        y: npt.ArrayLike,
        confidential: npt.ArrayLike | None = None,
    ) -> Self:
        """Learn the map.

        Parameters
        ----------
        X : (n_records, n_features)
            Records.
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
            If there is no such method, or its options are wrong.
        InputError
            If a variable that the method needs is missing, or records do not fit.
        """
        x, target = _validate(self, X, y=y, multi_output=True, ensure_min_samples=2)
        method, options = self._read_options()
        roles = {"desired": target, "confidential": confidential}
        missing = sorted(role for role in options.needs() if roles.get(role) is None)
        if missing:
            raise InputError(
                f"The method {method.name!r} needs {' and '.join(missing)}.",
                remedy="Give y for desired, confidential for confidential.",
                code="missing-variable",
            )
        records = Records(x, desired=_as_values(target), confidential=_as_values(confidential))
        names = tuple(getattr(self, "feature_names_in_", ()))
        schema = replace(records.schema, feature_names=names)
        self.map_: RecordMap = with_schema(method.fit(records, options), FittedSchema.of(schema))
        return self

    def transform(
        self,
        X: npt.ArrayLike,  # noqa: N803  scikit-learn's name
    ) -> npt.NDArray[Any]:
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
        x = _validate(self, X, reset=False)
        return self.map_.apply(x)

    def get_feature_names_out(self, input_features: npt.ArrayLike | None = None) -> Any:
        """Names of the released features: the raw ones where their number stays."""
        check_is_fitted(self)
        if self.map_.n_features_out == self.n_features_in_:
            return OneToOneFeatureMixin.get_feature_names_out(self, input_features)
        names = [f"released_{j}" for j in range(self.map_.n_features_out)]
        return np.array(names, dtype=object)

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
                f"There is no row-wise method {self.method!r}{suggest(self.method, known)}.",
                remedy=f"Use one of: {', '.join(known)}.",
            )
        if not isinstance(self.options or {}, Mapping):
            raise OptionError(
                f"options is of type {type(self.options).__name__}.",
                remedy='Give a dictionary, such as {"utility_budget": 0.01}.',
            )
        given = {**(self.options or {}), "name": self.method}
        return method, make_options(method.options, given, self.method)


def _validate(estimator: RecordSanitizer, x: npt.ArrayLike, **checks: Any) -> Any:
    """Validate as scikit-learn does, but without the values that its messages quote."""
    message = ""
    try:
        return validate_data(estimator, x, dtype=[np.float64, np.float32], **checks)
    except ValueError as error:
        message = str(error)
    # Messages of scikit-learn quote values of records.
    for quoted in (r"(?s)array=.*?\.\n", r"(?s)(?<=could not convert string to float).*"):
        message = re.sub(quoted, "", message)
    raise InputError(message, code="shape")


def _as_values(values: npt.ArrayLike | None) -> npt.NDArray[Any] | None:
    """Numbers as numbers; booleans and what is held as objects as classes."""
    if values is None:
        return None
    found = np.asarray(values)
    # Objects are text or mixed: as classes both are read by their names.
    return found.astype(np.str_) if found.dtype.kind == "O" else found
