"""How many outputs a filter may have: refused or warned of before anything is trained.

A linear filter's outputs are sums of the features: more of them than features tell nothing more. A
curved one may want them, for many classes of few features, and can then hold whole records.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from privpipe.errors import OptionError, PrivacyWarning
from privpipe.protocols import Column


def check_width(n_filtered: int, n_features: int) -> None:
    """Raise OptionError unless ``1 <= n_filtered <= n_features``."""
    if not 1 <= n_filtered <= n_features:
        raise OptionError(
            f"n_filtered is {n_filtered} for records of {n_features} features. Outputs of a linear "
            f"filter are sums of the features: more than {n_features} of them tell nothing more.",
            remedy=f"Set n_filtered to 1 to {n_features}.",
        )


def check_reduced_width(desired: Sequence[Column], n_features: int) -> None:
    """Raise OptionError if the reduced form has more outputs than records have features.

    It has one less than the classes of each desired variable, and one for a number.
    """
    n_useful = sum(max(1, (column.n_categories or 2) - 1) for column in desired)
    if n_useful > n_features:
        raise OptionError(
            f"n_filtered is not set, and the classes of {', '.join(c.name for c in desired)} ask "
            f"for {n_useful} outputs of records of {n_features} features. Outputs of a linear "
            f"filter are sums of the features: more than {n_features} of them tell nothing more.",
            remedy=f"Set n_filtered to 1 to {n_features}.",
        )


def warn_of_outputs(n_outputs: int, n_features: int) -> None:
    """Warn of a curved filter that releases more numbers than a record has.

    It is not refused: many classes of few features may want them.
    """
    if n_outputs > n_features:
        warnings.warn(
            f"The filter releases {n_outputs} numbers of records of {n_features} features: so many "
            "can hold whole records, and adversaries that are not trained against may find what "
            f"is hidden. Usual are 1 to {n_features} outputs.",
            PrivacyWarning,
            stacklevel=3,
        )


def warn_of_width(n_filtered: int, n_useful: int) -> None:
    """Warn of filter outputs that help no target and serve adversaries."""
    if n_filtered > n_useful:
        warnings.warn(
            f"n_filtered is {n_filtered}; the targets use {n_useful} outputs. The other "
            f"{n_filtered - n_useful} add no utility for linear predictors and leak to "
            "adversaries that are not linear.",
            PrivacyWarning,
            stacklevel=3,
        )
