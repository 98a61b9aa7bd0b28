"""Masking: options, fit and row.

Yi et al. 2014: one pass of co-moments carries the whole fit, since every iterate of the paper's
iteration is a small matrix times its data. Only where entries are missing in many ways, each round
reads all records once.
"""

import hashlib
import math
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import check_options
from privpipe.numerics.masking import completion, sign_sums
from privpipe.numerics.masking.missing import FactorModel
from privpipe.numerics.moments import CoMoments, name_targets
from privpipe.protocols import FloatArray, Method, Role, Shards, ShardSchema
from privpipe.sanitizers.arrays import check_shards, say_incomplete
from privpipe.sanitizers.masking import record_survey, refusals
from privpipe.sanitizers.masking.masking_model import BIAS, MaskingModel
from privpipe.sanitizers.options import MethodOptions, method_options

TILE_BYTES = 2**22
"""Of the surrogates that a worker sums up at once."""

BLUR_STEPS = 4.0
"""Standard deviation, in steps of the lattice, of the noise on sums of integer features."""

MOST_CLIPPINGS = 8
"""Passes until the scale of clipped features stays."""


@method_options
class MaskingOptions(MethodOptions):
    """Options of ``[method] name = "masking"``."""

    name: Literal["masking"] = "masking"
    n_surrogates: int = Field(ge=1)
    """Surrogate records to release: at least the features and one. However many or few, they carry
    the exact coefficients, which do not protect single records."""
    noise_level: float | None = Field(None, ge=0, allow_inf_nan=False)
    """Standard deviation of the noise of standardised features (of features as they are, for the
    literal solver). Default: read off their spectrum."""
    threshold: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Clip features this many standard deviations from their mean. Default: no; outlying records
    are refused."""
    solver: completion.Solver = "scaled"
    """scaled: standardised, and the model refitted on the subspace found. literal: problem (3) of
    the paper as it is, which loses the model where responses are large."""
    missing: Literal["refuse", "complete"] = "refuse"
    """Missing entries (NaN): refuse features that have some and leave records without responses out
    of the fit, or complete both by problem (5) of the paper."""
    integers: Literal["refuse", "blur"] = "refuse"
    """Features of integers, whose signed sums lie on a lattice. Refuse them, or blur every sum by
    noise of four steps of the lattice, which hides no single record."""

    forgets_keys: ClassVar[bool] = True

    uses: ClassVar[frozenset[Role]] = frozenset({"desired"})
    """What the regression model predicts."""

    def needs_labels(self) -> tuple[frozenset[Role], ...]:
        """None where missing entries are completed."""
        return () if self.missing == "complete" else (frozenset({"desired"}),)


@check_options
def fit_masking(shards: Shards, options: MaskingOptions) -> MaskingModel:
    """Fit what surrogates keep: the regression of the desired variables on the features.

    Parameters
    ----------
    shards
        Training records with at least one desired variable; a categorical one becomes an indicator
        per class (one for two classes).
    options
        See `MaskingOptions`.

    Returns
    -------
    MaskingModel
        Nothing is drawn yet.

    Raises
    ------
    OptionError
        If there are too few surrogates for a regression.
    InputError
        If records are too few, outlying, not finite or integers, a person holds too much, or a
        variable does not vary; see `refusals`.

    Notes
    -----
    Departure: the fit takes the expectation ``E[P P^T] = I`` for the surrogates' own moments. So it
    does not depend on what is drawn.

    References
    ----------
    Yi et al. 2014, problems (3) and (5).

    Examples
    --------
    >>> from privpipe.records.memory import Records
    >>> x = np.random.default_rng(0).normal(size=(400, 3))
    >>> model = fit_masking(Records(x, desired=x @ [1.0, 2.0, 0.0]), MaskingOptions(n_surrogates=9))
    >>> np.abs(model.coefficients.ravel()).round(3).tolist()
    [1.0, 2.0, 0.0, 0.0]
    """
    check_shards(shards)
    schema = shards.schema
    check_masking(options, schema)
    complete = options.missing == "complete"
    # All that can be refused is refused from this one pass, before a key is made.
    survey = shards.reduce(partial(record_survey.survey_records, schema=schema, complete=complete))
    _check_records(survey, schema, options)
    survey, centre, scale = _clip(shards, survey, options)
    t, names = survey.n_responses, schema.named_features
    share_clipped = survey.n_clipped / max(1.0, float(survey.counts[t:].sum()))
    refusals.check_clip(share_clipped)
    refusals.check_outliers(survey.furthest[t:], survey.counts[t:], names, options.n_surrogates)
    if options.solver == "literal":
        centre, scale = np.zeros_like(centre), np.ones_like(scale)
    loadings, noise = None, options.noise_level
    if complete and survey.n_incomplete:
        loadings = record_survey.complete_records(
            shards, survey, centre, scale, noise_level=noise, clip=options.threshold or 0.0
        )
        gram, n_records, noise = loadings.gram, survey.n_records, 0.0  # they have no noise left
    else:
        say_incomplete(survey.n_incomplete, survey.n_records, "desired")
        every = np.ones(len(centre), bool)
        gram = record_survey.expand_moments(survey.complete, every, centre, scale)
        n_records = round(survey.complete.count)
    refusals.check_rank(survey.n_records, int(np.linalg.matrix_rank(gram[t:, t:], hermitian=True)))
    found = completion.solve_masked_regression(
        gram, t, n_records, options.n_surrogates, noise=noise, solver=options.solver
    )
    made = _make_model(schema, options, survey, gram, found, loadings, centre, scale, share_clipped)
    measure = partial(
        made.measure_persons,
        schema=schema,
        centre=survey.centre[:t],
        norm=np.sqrt(survey.spread[:t]),
        # A fit that resumes needs the same names; the sums hold no less of the records.
        key=int.from_bytes(hashlib.sha256(np.ascontiguousarray(gram).tobytes()).digest()[:8]),
    )
    persons, named = shards.reduce(measure), bool(schema.groups)
    refusals.check_persons(persons, options.n_surrogates, clip=options.threshold, is_named=named)
    return made


def _make_model(
    schema: ShardSchema,
    options: MaskingOptions,
    survey: record_survey.RecordSurvey,
    gram: FloatArray,
    found: completion.MaskedRegression,
    loadings: FactorModel | None,
    centre: FloatArray,
    scale: FloatArray,
    share_clipped: float,
) -> MaskingModel:
    """The model, with the grid that its sums are exact on."""
    t, n, q = survey.n_responses, survey.n_records, schema.n_features + 1
    blur = np.zeros(schema.n_features)
    whole = survey.varying_integers
    blur[whole] = BLUR_STEPS * math.sqrt(3 / n) / scale[t:][whole]
    # Completed entries may lie beyond all known ones.
    room = 4.0 if loadings is not None else 1.0
    # Bounds of the values, not values: a record beyond them is refused when it is summed.
    largest = float((np.maximum(survey.most - centre, centre - survey.least) / scale)[t:].max())
    bound, step = sign_sums.plan_grid(max(room * largest, 1.0) + float(blur.max(initial=0.0)), n)
    # Whole words of 64 signs: no word is read for two tiles.
    return MaskingModel(
        mean=centre[t:],
        scale=scale[t:],
        response_mean=centre[:t],
        response_scale=scale[:t],
        mixing=found.mixing,
        weights=found.coefficients,
        whitening=_whiten(gram[t:, t:]),
        loadings=np.zeros((1, 1)) if loadings is None else loadings.loadings,
        blur=blur,
        ridge=0.0 if loadings is None else loadings.ridge,
        clip=options.threshold or 0.0,
        bound=bound,
        step=step,
        n_records=options.n_surrogates,
        tile_rows=min(max(64, TILE_BYTES // (8 * q) // 64 * 64), options.n_surrogates),
        rank=found.rank,
        noise=found.noise,
        penalty=found.penalty,
        share_clipped=share_clipped,
        solver=options.solver,
        stopped=found.completion.stopped,
        feature_names=(*schema.named_features, BIAS),
        response_names=name_targets(schema.desired),
    )


def check_masking(options: MaskingOptions, schema: ShardSchema) -> None:
    """Raise for options that no records of a schema can be masked with."""
    refusals.check_regression(schema)
    refusals.check_counts(options.n_surrogates, schema.n_features + 1)
    scaled = {"threshold": options.threshold is not None, "missing": options.missing == "complete"}
    if options.solver == "literal" and any(scaled.values()):
        name = next(name for name, given in scaled.items() if given)
        problem = f'{name} works on standardised features, which solver = "literal" does not make.'
        raise OptionError(problem, remedy='Leave it out, or set solver = "scaled".')


def _check_records(
    survey: record_survey.RecordSurvey, schema: ShardSchema, options: MaskingOptions
) -> None:
    """Raise for what the survey shows to be unfit or unsafe."""
    t, names = survey.n_responses, schema.named_features
    responses = name_targets(schema.desired)
    if survey.n_empty:
        problem = f"{survey.n_empty} records hold no feature at all."
        raise InputError(problem, remedy="Leave them out.")
    missing = survey.counts[t:] == 0
    if missing.any():
        problem = f"{refusals.name_few(names, missing)} are missing in every record."
        raise InputError(problem, remedy="Leave these features out.")
    if survey.constant[:t].any():
        raise InputError(
            f"Response {refusals.name_few(responses, survey.constant[:t])} is constant or missing.",
            remedy="Leave it out of desired, or mask records in which it varies.",
            code="single_class",
        )
    furthest, counts, n_complete = survey.furthest[:t], survey.counts[:t], survey.complete.count
    refusals.check_responses(furthest, counts, responses, options.n_surrogates)
    if options.missing == "refuse" and n_complete <= schema.n_features + 1 + t:
        problem = f"{n_complete:g} complete records are too few for {schema.n_features} features."
        raise InputError(problem, remedy='Mask more records, or set [method] missing = "complete".')
    scale = survey.scale[t:][~survey.constant[t:]]
    if options.solver == "literal" and scale.size and scale.max() > 1e6 * scale.min():
        problem = "Features are on scales more than 1e6 apart, of which only the largest count."
        raise InputError(problem, remedy='Set solver = "scaled", which standardises them.')
    if options.integers == "refuse":
        refusals.check_whole(survey.varying_integers, names)


def _clip(
    shards: Shards, survey: record_survey.RecordSurvey, options: MaskingOptions
) -> tuple[record_survey.RecordSurvey, FloatArray, FloatArray]:
    """Survey of the clipped records, with the centre and scale that they are clipped by.

    An outlying record widens the scale that it is clipped by, so that is measured again until it
    stays.
    """
    centre, scale, t = survey.centre, survey.scale, survey.n_responses
    if not options.threshold or not (survey.furthest[t:] > options.threshold).any():
        return survey, centre, scale
    schema, complete = shards.schema, options.missing == "complete"
    for attempt in range(MOST_CLIPPINGS):
        if attempt:
            centre, scale = survey.centre, survey.scale
        most = options.threshold * scale[t:]
        low, high = centre[t:] - most, centre[t:] + most
        ask = partial(record_survey.survey_records, schema=schema, complete=complete)
        survey = shards.reduce(partial(ask, low=low, high=high))
        if np.allclose(survey.scale[t:], scale[t:], rtol=0.02):
            break
    return survey, centre, scale


def _whiten(gram: FloatArray) -> FloatArray:
    """What turns features into coordinates whose squares sum to the leverage."""
    values, vectors = np.linalg.eigh(gram)
    retained = values > len(values) * 1e-12 * values[-1]
    return np.asarray(vectors[:, retained] / np.sqrt(values[retained]))


METHOD = Method(
    options=MaskingOptions,
    releases="surrogate",
    fit=fit_masking,
    source="Yi et al. 2014, Privacy and Regression Model Preserved Learning, problems (3) and (5)",
    maps=(MaskingModel,),
    promise="surrogate records with the regression model of the raw ones; single records are not "
    "protected from whoever knows the others",
    statistics=(record_survey.RecordSurvey, CoMoments, refusals.PersonLeverage),
    check=check_masking,
)
"""Masking."""
