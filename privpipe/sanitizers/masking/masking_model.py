"""The fitted masking: what of each record is summed with random signs, and what a sum becomes.

Also drawing surrogates from records in memory.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from privpipe import protocols
from privpipe.capabilities import AddsUp
from privpipe.described import record_map
from privpipe.errors import InputError
from privpipe.numerics.masking import missing, sign_sums
from privpipe.numerics.random.draws import draw_uniform, sign_words
from privpipe.protocols import FloatArray, Guarantee, IntArray, RecordStream, Shard, ShardSchema
from privpipe.sanitizers.grounds import say_promise
from privpipe.sanitizers.masking import masked_records, record_survey, refusals

BIAS = "bias"
"""Name of the feature that is one in every record and carries the intercept."""


@dataclass(frozen=True, eq=False)
class SignedSums(AddsUp):
    """Sums of some records with signs of their own, exact in float64.

    Parameters
    ----------
    sums : (n_surrogates of a tile, n_features with the bias)
        On the grid of the model: integers.
    n_records
        How many were summed.
    """

    sums: FloatArray
    n_records: int


@record_map
class MaskingModel(masked_records.SurrogateModel):
    """Makes surrogates of signed sums of standardised records.

    Parameters
    ----------
    mean, scale : (n_features,)
        Of the features.
    response_mean, response_scale : (n_responses,)
        Of the responses.
    mixing : (n_features + 1, n_features + 1)
        Standardised surrogates are ``mixing @ (X P)``; the bias feature is the last.
    weights : (n_responses, n_features + 1)
        Standardised responses of surrogates are ``weights @`` their features.
    whitening : (n_features + 1, rank)
        The leverage of a record is ``|record @ whitening|^2``.
    loadings : (n_responses + n_features + 1, rank)
        Of the completion of records with missing entries; one zero where none may be missing.
    blur : (n_features,)
        Half widths of the noise that hides the lattice of integer features.
    ridge
        Of the completion; 0 where there is none.
    clip
        Standard deviations to which features are clipped; 0 where they are not.
    bound, step
        Of the grid on which records are summed without rounding.
    n_records
        Surrogates to make.
    tile_rows
        Surrogates that are summed up at once.
    rank
        Dimensions of the features that were retained.
    noise, penalty
        Noise level of the standardised features, and the penalty of the nuclear norm.
    share_clipped
        Of all entries of the training records.
    solver, stopped
        How the fit was solved, and why it ended.
    feature_names, response_names
        Columns of the release; the bias feature is the last of the features.
    """

    kind: ClassVar[str] = "masking_model"
    draws: ClassVar[bool] = True
    way: ClassVar[str] = "privpipe.draw_masked_records for records in memory"

    mean: FloatArray
    scale: FloatArray
    response_mean: FloatArray
    response_scale: FloatArray
    mixing: FloatArray
    weights: FloatArray
    whitening: FloatArray
    loadings: FloatArray
    blur: FloatArray
    ridge: float
    clip: float
    bound: float
    step: float
    n_records: int
    tile_rows: int
    rank: int
    noise: float
    penalty: float
    share_clipped: float
    solver: str
    stopped: str
    feature_names: tuple[str, ...]
    response_names: tuple[str, ...]

    @property
    def n_features_in(self) -> int:
        return len(self.mean)

    @property
    def coefficients(self) -> FloatArray:
        """Responses of surrogates are ``features @ coefficients``, (n_features + 1, n_responses).

        In the units of the records; the last row is the intercept.
        """
        slopes = self.weights[:, :-1] / self.scale * self.response_scale[:, None]
        intercept = self.weights[:, -1] * self.response_scale + self.response_mean
        return np.asarray(np.column_stack([slopes, intercept - slopes @ self.mean]).T)

    @property
    def guarantee(self) -> Guarantee:
        """None for single records; what is retained, what is given away, and what it rests on."""
        return say_promise(
            "surrogates",
            parameters=(
                ("n_surrogates", float(self.n_records)),
                ("rank", float(self.rank)),
                ("noise_level", self.noise),
                ("share_clipped", self.share_clipped),
            ),
        )

    def sum_records(
        self, shard: Shard, schema: ShardSchema, stream: RecordStream, places: IntArray, tile: int
    ) -> SignedSums:
        """Sum the records of a shard with their signs of one tile.

        Parameters
        ----------
        shard, schema
            Features, and responses where entries may be missing.
        stream
            Words of a run of records that holds those of the shard.
        places : (n_records,)
            Numbers of the shard's records within the run.
        tile
            Which of the `n_tiles`.

        Raises
        ------
        InputError
            If a record is not finite, or beyond those of the fit.
        """
        # The last tile may be smaller; the words of a record are cut to its signs.
        n_signs = min(self.tile_rows, self.n_records - tile * self.tile_rows)
        if not len(places):
            return SignedSums(np.zeros((n_signs, self.n_features_out)), 0)
        # As in the fit, clipping and completion included: the grid was planned for these values.
        rows = self._standardise(shard, schema)
        bad = int(np.count_nonzero(~np.isfinite(rows).all(axis=1)))
        if bad:
            problem = f"{bad} of {len(rows)} records hold features that are missing or infinite."
            remedy = 'Leave them out, or set [method] missing = "complete".'
            raise InputError(problem, remedy=remedy, code="nonfinite")
        # Before the signs: whole numbers add up without rounding, in any order of chunks and
        # workers.
        integers = sign_sums.round_to_grid(rows, self.bound, self.step)
        # On the grid as well, so that blurred sums stay exact.
        self._blur(integers, stream, places)
        words = _read_words(stream, f"masking/{tile}", sign_words(n_signs), places)
        return SignedSums(sign_sums.sum_with_signs(integers, words, n_signs), len(rows))

    def finish_records(self, sums: SignedSums) -> tuple[FloatArray, FloatArray]:
        """Features, (n, n_features + 1), and responses, (n, n_responses), of a tile of surrogates.

        In the units of the records. The bias feature replaces one, and the mean of a feature is
        taken as often as it is counted there.
        """
        # Divided by sqrt(m): E[P P^T] is the identity, as the fit assumes.
        features = (sums.sums * (self.step / math.sqrt(self.n_records))) @ self.mixing.T
        responses = features @ self.weights.T
        # A sum of records holds their mean as often as it holds the feature that is one in each.
        bias = features[:, -1:]
        made = np.column_stack([features[:, :-1] * self.scale + bias * self.mean, bias])
        return made, responses * self.response_scale + bias * self.response_mean

    def measure_persons(
        self, shard: Shard, *, schema: ShardSchema, centre: FloatArray, norm: FloatArray, key: int
    ) -> refusals.PersonLeverage:
        """What each person of a shard holds of the features and of the responses.

        Parameters
        ----------
        shard, schema
        centre, norm : (n_responses,)
            Mean of each response, and the norm of all deviations from it.
        key
            Secret of this fit, by which persons are named.
        """
        rows = self._standardise(shard, schema)
        responses = (record_survey.code_responses(shard, schema) - centre) / norm
        return refusals.measure_person_leverage(shard, rows @ self.whitening, responses, key)

    def restore_records(
        self, shard: Shard, *, schema: ShardSchema, reads_responses: bool
    ) -> tuple[FloatArray, FloatArray]:
        """The records that are summed, in their own units: clipped, and completed.

        Parameters
        ----------
        shard, schema
        reads_responses
            Whether what is missing is completed from the responses too, which themselves are
            completed then: as the surrogates are made. Else responses stay as they are, and
            features are completed from features, as for who does not know the responses.

        Returns
        -------
        features : (n_records, n_features + 1)
            The bias last; NaN where entries are missing and none are completed.
        responses : (n_records, n_responses)
        """
        responses = self._code_responses(shard, schema)
        reported = responses if reads_responses else np.full_like(responses, np.nan)
        completed, rows = self._complete(shard, reported)
        made = np.column_stack([rows[:, :-1] * self.scale + self.mean, np.ones(len(rows))])
        chosen = completed if reads_responses else responses
        return made, chosen * self.response_scale + self.response_mean

    def _standardise(self, shard: Shard, schema: ShardSchema) -> FloatArray:
        """Standardised records with the bias feature, completed where entries are missing."""
        return self._complete(shard, self._code_responses(shard, schema))[1]

    def _code_responses(self, shard: Shard, schema: ShardSchema) -> FloatArray:
        coded: FloatArray = record_survey.code_responses(shard, schema) - self.response_mean
        return coded / self.response_scale

    def _complete(self, shard: Shard, responses: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Standardised responses and records with the bias, completed where that was fitted."""
        rows = np.ones((len(shard.features), self.n_features_out))
        inner = rows[:, :-1]
        np.subtract(shard.features, self.mean, out=inner)
        inner /= self.scale
        if self.clip:
            np.clip(inner, -self.clip, self.clip, out=inner)
        # The fit completed nothing, and so nothing may be missing: what is, was refused before.
        if not self.ridge:
            return responses, rows
        completed = missing.complete_rows(np.hstack([responses, rows]), self.loadings, self.ridge)
        t = len(self.response_mean)
        return completed[:, :t], np.clip(completed[:, t:], -self.bound, self.bound)

    def _blur(self, integers: FloatArray, stream: RecordStream, places: IntArray) -> None:
        """Add uniform noise to integer features, on the grid, in place."""
        columns = np.flatnonzero(self.blur)
        if len(columns):
            words = stream.words_at("masking/blur", len(columns), places)
            noise = (2 * draw_uniform(words) - 1) * self.blur[columns]
            integers[:, columns] += np.rint(noise / self.step)


def _read_words(
    stream: RecordStream, purpose: str, words_per_record: int, places: IntArray
) -> protocols.WordArray:
    """Words of some records: of a run that is mostly needed, all are cheaper than some."""
    # A run of words takes one pass of the cipher, scattered ones a block each.
    if stream.n_records <= 2 * len(places):
        return stream.words(purpose, words_per_record)[places]
    return stream.words_at(purpose, words_per_record, places)


def draw_masked_records(
    model: MaskingModel, shards: protocols.Shards, stream: RecordStream
) -> masked_records.MaskedRecords:
    """Draw the surrogates of records in memory.

    Parameters
    ----------
    model
        Fitted to the same records.
    shards
        They, with the desired variables.
    stream
        Words of all of them, of a key that is destroyed afterwards: whoever has it solves for the
        records.

    Raises
    ------
    InputError
        If the stream is of another number of records, or a record is unlike those of the fit.

    Examples
    --------
    >>> from privpipe.numerics.random.streams import KeyedStream
    >>> from privpipe.records.memory import Records
    >>> from privpipe.sanitizers.masking.surrogates import MaskingOptions, fit_masking
    >>> x = np.random.default_rng(0).normal(size=(400, 3))
    >>> records = Records(x, desired=x @ [1.0, 2.0, 0.0])
    >>> model = fit_masking(records, MaskingOptions(n_surrogates=90))
    >>> stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=400)
    >>> made = draw_masked_records(model, records, stream)
    >>> made.features.shape, made.response_names
    ((90, 4), ('desired_0',))
    """
    if stream.n_records != shards.n_records:
        problem = f"The stream is of {stream.n_records} records, not of {shards.n_records}."
        raise InputError(problem, remedy="Give a stream of all records.")
    parts = []
    for tile in range(model.n_tiles):
        sums = shards.reduce(partial(_sum_shard, model, shards.schema, stream, tile))
        parts.append(model.finish_records(sums))
    return model.join_tiles(parts)


def _sum_shard(
    model: MaskingModel, schema: ShardSchema, stream: RecordStream, tile: int, shard: Shard
) -> SignedSums:
    """Sums of a shard with the words of its records."""
    places: IntArray = np.arange(shard.first_record, shard.first_record + shard.n_records)
    return model.sum_records(shard, schema, stream, places, tile)
