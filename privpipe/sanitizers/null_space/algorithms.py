"""Null-space cleaning, algorithms 1 and 2: maps, options, fits and rows.

Xu et al. 2017, Cleaning the Null Space. Algorithm 1 (Figure 2) removes from each record what a
known linear predictor does not need. Algorithm 2 (Figure 3) spends the budget first where the
confidential prediction changes most per unit of utility.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

from privpipe.described import record_map
from privpipe.errors import OptionError
from privpipe.fitted_names import keep_names
from privpipe.numerics.null_space import factorisation
from privpipe.protocols import ArrayLike, FloatArray, Method, Shards
from privpipe.sanitizers.arrays import as_predictor, check_confidential
from privpipe.sanitizers.null_space import linear_cleaner, predictors
from privpipe.sanitizers.null_space.predictors import Arrays, as_file
from privpipe.sanitizers.options import method_options

Rule = Literal["greedy", "kkt"]
Variant = Literal["null_first", "simultaneous"]


@method_options
class NullSpaceOptions(predictors.CleanerOptions):
    """Options of ``[method] name = "null_space"``."""

    name: Literal["null_space"] = "null_space"
    rule: Rule = "greedy"
    """greedy: the paper's knapsack, smallest components first. kkt: maximises the sum of removed
    shares, which is what Theorem 2 states."""


@record_map
class NullSpaceCleaner(linear_cleaner.TargetRelease):
    """Algorithm 1: keeps of each record only what its desired prediction needs.

    With ``A = U S W^T`` the coordinates ``b = W^T A^T (x - centre)`` carry the whole desired
    prediction. They are shrunk within the budget and lifted back to a record: ``x~ = centre + D
    shrink(b)``. Two records of equal desired prediction ``A^T x``, in exact arithmetic, are
    released equal to the last bit, and so withheld. All is made of the prediction on a grid.
    Records are read as float64; wider numbers are rounded to it first. For the fields see
    `LinearCleaner`.

    Examples
    --------
    The toy example of the paper, where the target label is ``x1 - x2``:

    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0)
    >>> cleaner.apply(np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.0], [6.0, 5.0]])).round(12)
    array([[ 1. , -1. ],
           [ 1. , -1. ],
           [ 2. , -2. ],
           [ 0.5, -0.5]])
    """

    kind: ClassVar[str] = "null_space_cleaner"
    theorem: ClassVar[str] = "Xu et al. 2017, Theorem 1"

    @classmethod
    def from_predictor(
        cls,
        desired_predictor: ArrayLike,
        *,
        utility_budget: float,
        rule: Rule = "greedy",
        **choices: Unpack[linear_cleaner.CleanerChoices],
    ) -> "NullSpaceCleaner":
        """Make a cleaner for a known predictor.

        Parameters
        ----------
        desired_predictor : (n_features, n_desired) or (n_features,)
            The linear operator that the desired predictor starts with. Examples are coefficients of
            a linear or multi-label regression, weights of a neural network's first layer (n_inputs,
            n_units), or loadings of principal components (n_features, n_components).
        utility_budget
            Largest loss of utility per record, in squared units of the desired prediction.
            0 removes the exact null space only.
        intercept : (n_desired,), optional
            Stored beside the predictor for those who predict with it.
        centre : (n_features,), optional
            Clean deviations from this record, usually the training mean.
        representative
            "closest": the released record nearest to the centre (the paper's). "likely": the
            most likely one under `covariance`.
        covariance : (n_features, n_features), optional
            Of the training features; only for "likely".
        augmented
            The last row of the predictor belongs to a column of ones, which `apply` appends.
        rule
            "greedy": the paper's knapsack. "kkt": maximises what Theorem 2 states.
        budget
            "total": the budget is for all desired labels together. "per_label": for each of
            them, as in the paper's tables; it is multiplied by their number.
        on_unrepresentable
            "fail", or "withhold" records that rounding alone may carry over the budget.
        condition, solver
            How the predictor was fitted, for the record.

        Raises
        ------
        OptionError
            If the budget is negative or not finite, or "likely" has no covariance.
        InputError
            If the predictor is not a finite, non-zero matrix, or shapes do not match.

        Examples
        --------
        Any predictor that starts with a linear operator will do: what comes after it sees the
        same numbers, up to the budget. The paper's four kinds, each on the same records:

        >>> x = np.random.default_rng(0).normal(size=(200, 5))
        >>> def cleaned(operator):
        ...     return NullSpaceCleaner.from_predictor(operator, utility_budget=0.0).apply(x)

        Linear regression: the coefficients, as `sklearn` has them in ``coef_``.

        >>> from sklearn.linear_model import LinearRegression, LogisticRegression
        >>> ally = LinearRegression().fit(x, x[:, 0] - x[:, 3])
        >>> np.allclose(ally.predict(cleaned(ally.coef_)), ally.predict(x))
        True

        Multi-label classification by regression and thresholds: a column per label.

        >>> labels = np.column_stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0])
        >>> ally = LogisticRegression().fit(x, labels @ [1, 2])
        >>> bool((ally.predict(cleaned(ally.coef_.T)) == ally.predict(x)).all())
        True

        A neural network: the weights of its first layer, (n_inputs, n_units).

        >>> layer = np.array([[1.0, 0.0], [1.0, 0.5], [0.0, 2.0], [0.0, 0.0], [-1.0, 1.0]])
        >>> np.allclose(np.tanh(cleaned(layer) @ layer), np.tanh(x @ layer))
        True

        Principal components: the loadings, (n_features, n_components), and their mean as centre.

        >>> from sklearn.decomposition import PCA
        >>> ally = PCA(2).fit(x)
        >>> cleaner = NullSpaceCleaner.from_predictor(
        ...     ally.components_.T, utility_budget=0.0, centre=ally.mean_
        ... )
        >>> np.allclose(ally.transform(cleaner.apply(x)), ally.transform(x))
        True

        In a file for ``[method] predictor``: ``np.savez("ally.npz", coefficients=operator)``.
        """
        predictor = as_predictor(desired_predictor)
        encoder, lift = linear_cleaner.factor_lift(predictor, **choices)
        fields = linear_cleaner.check_fields(predictor, utility_budget, **choices)
        return cls(encoder=encoder, lift=lift, rule=rule, **fields)


@keep_names
def fit_null_space_cleaner(
    shards: Shards,
    *,
    desired_predictor: ArrayLike | None = None,
    desired_intercept: ArrayLike | None = None,
    **choices: Any,
) -> NullSpaceCleaner:
    """Fit the desired predictor by least squares and make its cleaner.

    One pass over the shards collects centred co-moments; everything else is a function of
    them. Where the scaled Gram matrix is ill-conditioned (above 1e5) a second pass factors the
    records themselves. Records with a missing desired label are left out.

    Parameters
    ----------
    shards
        Training records with at least one desired variable (none with `desired_predictor`).
    **choices
        The fields of `NullSpaceOptions`, but for name and files.
    desired_predictor : (n_features, n_desired), optional
        Use this predictor instead of fitting one; the pass then only finds mean and covariance.
    desired_intercept : (n_desired,), optional
        Its intercept.

    Returns
    -------
    NullSpaceCleaner

    Raises
    ------
    RankError
        If the features are dependent to the precision of float64 and ``ridge = 0``.
    InputError
        If there is no desired variable, or features are not finite.
    OptionError
        If options contradict one another or are out of range.

    Warns
    -----
    PrivacyWarning
        If a variable is both desired and confidential: no privacy is possible.

    References
    ----------
    Xu et al. 2017, Figure 2; methods of fitting: section "Experimental results".

    Examples
    --------
    >>> x = np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.0], [6.0, 5.0]])
    >>> from privpipe import Records
    >>> cleaner = fit_null_space_cleaner(
    ...     Records(x, desired=x[:, 0] - x[:, 1]), utility_budget=0.01
    ... )
    >>> loss = (cleaner.predict(cleaner.apply(x)) - cleaner.predict(x)) ** 2
    >>> bool((loss <= 0.01).all())
    True

    Principal components: their loadings are the linear operator that the ally starts with.

    >>> loadings = np.linalg.svd(x - x.mean(axis=0))[2][:1].T
    >>> cleaner = fit_null_space_cleaner(
    ...     Records(x), utility_budget=0.0, desired_predictor=loadings
    ... )
    >>> np.allclose(cleaner.apply(x) @ loadings, x @ loadings)
    True
    """
    options = predictors.take_options(NullSpaceOptions, "null_space", choices)
    return fit_null_space(shards, options, predictor=as_file(desired_predictor, desired_intercept))


def fit_null_space(shards: Shards, options: NullSpaceOptions, **files: Arrays) -> NullSpaceCleaner:
    """Fit from options; `files` holds the arrays of the predictor's file, when one is named."""
    learned, choices = predictors.learn_predictors(shards, options, files)
    return NullSpaceCleaner.from_predictor(
        learned["desired"], utility_budget=options.utility_budget, rule=options.rule, **choices
    )


NULL_SPACE = Method(
    options=NullSpaceOptions,
    fit=fit_null_space,
    source="Xu et al. 2017, Cleaning the Null Space, algorithm 1",
    maps=(NullSpaceCleaner, linear_cleaner.FactoredCleaner),
    promise=predictors.UTILITY_PROMISE,
    statistics=predictors.DESIGN_STATISTICS,
    check=predictors.check_augmented,
)


@record_map
class TargetedCleaner(linear_cleaner.TargetRelease):
    """Algorithm 2: spends the budget where it hurts the confidential predictor most.

    The coordinates of algorithm 1 are turned so that the confidential gain per unit of budget
    is one number g_j per coordinate. It is the same for all records, and coordinates are removed by
    decreasing g. With one desired label it is algorithm 1. Two records of equal desired prediction
    are released equal to the last bit, as by algorithm 1. The confidential predictor chooses basis,
    order and lift, once for all records. For the other fields see `LinearCleaner`.

    Parameters
    ----------
    confidential : (n_features_cleaned, n_confidential)
        ``A_c``, the predictor aimed at.
    gain : (rank,)
        ``g``, decreasing.
    variant
        "null_first" or "simultaneous".

    Examples
    --------
    >>> desired = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> secret = np.array([0.0, 3.0, 1.0])
    >>> cleaner = TargetedCleaner.from_predictors(desired, secret, utility_budget=1.0)
    >>> cleaner.apply(np.array([[2.0, 2.0, 2.0]])).round(6) + 0.0
    array([[2., 1., 0.]])
    """

    kind: ClassVar[str] = "targeted_cleaner"
    theorem: ClassVar[str] = "Xu et al. 2017, Theorem 3"

    rule: str = "in_order"
    _: KW_ONLY
    confidential: FloatArray
    gain: FloatArray
    variant: str = "null_first"

    @classmethod
    def from_predictors(
        cls,
        desired_predictor: ArrayLike,
        confidential_predictor: ArrayLike,
        *,
        utility_budget: float,
        variant: Variant = "null_first",
        **choices: Unpack[linear_cleaner.CleanerChoices],
    ) -> "TargetedCleaner":
        """Make a cleaner for known predictors.

        Parameters
        ----------
        desired_predictor : (n_features, n_desired) or (n_features,)
            The linear operator that the desired predictor starts with.
        confidential_predictor : (n_features, n_confidential) or (n_features,)
            The linear predictor to protect from.
        utility_budget
            Largest loss of utility per record, in squared units of the desired prediction.
        variant
            "null_first": what the desired predictor does not see is removed first, then its
            coordinates by gain (reproduces the paper's tables). "simultaneous": the released
            record keeps as little of the confidential prediction as its coordinates allow;
            exact for Theorem 4, and e_privacy is largest within that basis.
        **choices
            See `NullSpaceCleaner.from_predictor`.

        Raises
        ------
        OptionError
            If the budget is negative or not finite, or options contradict one another.
        InputError
            If a predictor is not a finite, non-zero matrix, or shapes do not match.

        Warns
        -----
        PrivacyWarning
            If the confidential predictor is a function of the desired one.
        """
        predictor = as_predictor(desired_predictor)
        confidential = check_confidential(confidential_predictor, predictor)
        if variant not in ("null_first", "simultaneous"):
            problem = f"variant is {variant!r}."
            raise OptionError(problem, remedy='Use "null_first" or "simultaneous".')
        if variant == "simultaneous" and choices.get("representative", "closest") != "closest":
            problem = 'variant = "simultaneous" chooses the representative itself.'
            remedy = 'Leave representative = "closest", or use "null_first".'
            raise OptionError(problem, remedy=remedy)
        encoder, lift = linear_cleaner.factor_lift(predictor, **choices)
        if variant == "simultaneous":
            # Before the coordinates are ordered: the gains depend on the lift.
            lift = factorisation.tilt_lift(encoder, lift, confidential)
        # One order for all records: Figure 3 needs no sorting per record.
        encoder, lift, gain = factorisation.order_by_gain(encoder, lift, confidential)
        fields = linear_cleaner.check_fields(predictor, utility_budget, **choices)
        fields |= {"encoder": encoder, "lift": lift, "confidential": confidential}
        return cls(gain=gain, variant=variant, **fields)


@method_options
class TargetedOptions(predictors.CleanerOptions):
    """Options of ``[method] name = "null_space_targeted"``."""

    name: Literal["null_space_targeted"] = "null_space_targeted"
    variant: Variant = "null_first"
    """null_first: reproduces the paper's tables. simultaneous: exact for Theorem 4."""
    confidential_predictor: str | None = None
    """File with the confidential predictor, instead of fitting it."""

    files_of: ClassVar[Mapping[predictors.TargetRole, str]] = {
        "desired": "predictor",
        "confidential": "confidential_predictor",
    }


@keep_names
def fit_targeted_cleaner(
    shards: Shards,
    *,
    desired_predictor: ArrayLike | None = None,
    desired_intercept: ArrayLike | None = None,
    confidential_predictor: ArrayLike | None = None,
    confidential_intercept: ArrayLike | None = None,
    **choices: Any,
) -> TargetedCleaner:
    """Fit both predictors in one pass and make the cleaner aimed at the confidential one.

    Each predictor is fitted to the records whose labels for it are complete.

    Parameters
    ----------
    shards
        Training records with desired and confidential variables (not needed for a predictor
        that is given).
    **choices
        The fields of `TargetedOptions`, but for name and files.
    desired_predictor, desired_intercept
        See `fit_null_space_cleaner`.
    confidential_predictor : (n_features, n_confidential), optional
        Use this predictor instead of fitting one.
    confidential_intercept : (n_confidential,), optional
        Its intercept; it matters only with ``intercept = "augmented"``.

    Returns
    -------
    TargetedCleaner

    Raises
    ------
    RankError, InputError, OptionError
        See `fit_null_space_cleaner`.

    Warns
    -----
    PrivacyWarning
        If no privacy is possible.

    References
    ----------
    Xu et al. 2017, Figure 3.

    Examples
    --------
    >>> from privpipe import Records
    >>> x = np.random.default_rng(1).normal(size=(50, 4))
    >>> records = Records(x, desired=x[:, :2], confidential=x[:, 1] + x[:, 3])
    >>> cleaner = fit_targeted_cleaner(records, utility_budget=0.1)
    >>> cleaner.gain.round(6)
    array([1., 0.])
    """
    return fit_targeted(
        shards,
        predictors.take_options(TargetedOptions, "null_space_targeted", choices),
        predictor=as_file(desired_predictor, desired_intercept),
        confidential_predictor=as_file(confidential_predictor, confidential_intercept),
    )


def fit_targeted(shards: Shards, options: TargetedOptions, **files: Arrays) -> TargetedCleaner:
    """Fit from options; `files` holds the arrays of the predictors' files that are named."""
    learned, choices = predictors.learn_predictors(shards, options, files)
    given = learned["desired"], learned["confidential"]
    return TargetedCleaner.from_predictors(
        *given, utility_budget=options.utility_budget, variant=options.variant, **choices
    )


NULL_SPACE_TARGETED = Method(
    options=TargetedOptions,
    fit=fit_targeted,
    source="Xu et al. 2017, Cleaning the Null Space, algorithm 2",
    maps=(TargetedCleaner, linear_cleaner.FactoredCleaner),
    promise=predictors.UTILITY_PROMISE,
    statistics=predictors.DESIGN_STATISTICS,
    check=predictors.check_augmented,
)
