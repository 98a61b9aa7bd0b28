"""Before any work: could this gate be passed at all, and what do a few chunks show of the rest?

`check` shows it, `run` refuses by it: what would end the fit after a minute ends the command now.
"""

import math
import warnings
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any, cast

import numpy as np

from privpipe.attacks.adversaries import attack_options
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics import folds, intervals, splits
from privpipe.attacks.threats import record_decisions, record_recovery
from privpipe.attacks.threats.attack_table import RECORD_ATTACKS
from privpipe.attacks.threats.verdicts import detectable_effect as effect
from privpipe.attacks.threats.verdicts import judgement
from privpipe.attacks.threats.verdicts.detectable_effect import ROOM, Evenness
from privpipe.capabilities import Forecast, Preview
from privpipe.errors import InputError, LeftOutWarning, OptionError, RankError
from privpipe.numerics.limits import say_upper
from privpipe.numerics.moments import CoMoments
from privpipe.pipeline.runs import earlier, run_options
from privpipe.pipeline.runs.configuration_file import write_keys
from privpipe.pipeline.runs.missing_values import fill_preview
from privpipe.pipeline.runs.run import HOLDOUT, MOST_RECORDS, Run, find_attack_options, find_subject
from privpipe.protocols import Column, FloatArray, IntArray, Shard, Shards
from privpipe.records.memory import Records
from privpipe.records.sampling import join_records
from privpipe.report.audit_text import read_texts, say
from privpipe.sanitizers import METHODS
from privpipe.store.collections.collection import Collection

MOST_CHUNKS = 4
"""Chunks read for a forecast, spread over the collection."""


@dataclass(frozen=True)
class GateNeeds:
    """How many held-out records the gate needs.

    Parameters
    ----------
    variable, score
        Of the limit that needs most; of surrogates, it may be the one of single records.
    n_needed
        Held-out records with which a release that reveals nothing of the variable would pass;
        infinite where none are enough.
    n_held_out
        Different records that are held out at most; of `unit`, as `n_needed`.
    n_intervals
        Of the variable, which share the level.
    limit
        The limit.
    reaches
        How far the upper limit of a mere guess goes with the records there are.
    unit
        "subjects" where all records of one have one value, and count as one.
    """

    variable: str
    score: str
    n_needed: float
    n_held_out: int
    n_intervals: int
    limit: float
    reaches: float
    unit: str = "records"

    @property
    def key(self) -> str:
        """The key of ``[gate]`` that holds the limit."""
        is_share = self.score.startswith(("tpr", "share"))
        return "exposed_max" if is_share else "confidential_advantage_max"

    @property
    def can_pass(self) -> bool:
        return self.reaches <= self.limit

    @property
    def has_room(self) -> bool:
        """Whether a release that reveals nothing passes by more than chance."""
        return ROOM * self.reaches <= self.limit

    def describe(self) -> str:
        """In a sentence."""
        score = judgement.SCORE_WORDS.get(self.score, f"a {self.score.replace('_', ' ')}")
        reaches = say_upper(self.reaches, self.limit)
        return say("needs", needs=self, score=score, reaches=reaches, infinity=math.inf)


@dataclass(frozen=True)
class GateForecast:
    """What the limits of a gate need of the records there are.

    Parameters
    ----------
    options, training
    n_earlier
        Earlier releases that are joined with this one.
    even
        By categorical variable, see `measure_even`; without it, classes are of one size.
    people
        See `count_people`.
    """

    options: run_options.RunOptions
    training: Collection
    n_earlier: int = 0
    even: Mapping[str, Evenness] = field(default_factory=dict)
    people: Mapping[str, float] = field(default_factory=dict)

    def find_hardest(self) -> GateNeeds | None:
        """The limit that needs most; None where nothing is attacked."""
        return max(
            self.plan_limits(),
            key=lambda one: (not one.can_pass, not one.has_room, one.n_needed),
            default=None,
        )

    def suggest(self) -> dict[tuple[str, str], Any]:
        """Keys to write into a configuration; none where the limits can be shown with some room.

        The limits are those that this number of records can show, no smaller: whoever wants less
        needs more records. They are in the configuration and in the release.
        """
        found: dict[tuple[str, str], Any] = {}
        case = self
        if self._find_short() and 0 < self.options.audit.holdout < HOLDOUT:  # 0 audits all records
            found["audit", "holdout"] = HOLDOUT
            case = replace(self, options=self.options.change("audit", holdout=HOLDOUT))
        # One limit is of exposure, the other of advantage.
        for _ in range(2):
            if (needs := case._find_short()) is None:
                break
            # In hundredths and rounded up, with room: what reveals nothing passes by more than
            # chance.
            found["gate", needs.key] = min(1.0, math.ceil(100 * ROOM * needs.reaches) / 100)
            limits = case.options.change("gate", **{needs.key: found["gate", needs.key]})
            case = replace(case, options=limits)
        return found

    def _find_short(self) -> GateNeeds | None:
        """The limit that most lacks room between it and what a mere guess reaches; None if none."""
        short = [one for one in self.plan_limits() if not one.has_room]
        return max(short, key=lambda one: one.reaches / one.limit, default=None)

    def plan_limits(self) -> list[GateNeeds]:
        """What every limit needs, of all that is attacked."""
        attacked = find_attack_options(self.options)
        n_records, share = self.training.schema_of_records.n_records, self.options.audit.holdout
        n_held_out = int(n_records * share) if share else n_records
        # A promise holds whatever attacks show: theirs are no verdicts of the gate.
        is_promised = self.options.method.consumes() is not None
        if METHODS[self.options.method.name].releases != "surrogate" or is_promised:
            return [*self._plan_variables(attacked, n_held_out)]
        # Confidential variables and single records are two questions to one release: each has half
        # of the level, so that both answers hold together.
        attacked = record_decisions.halve_level(attacked)
        records = _plan_records(attacked, n_records - n_held_out, n_held_out)
        return [*records, *self._plan_variables(attacked, n_held_out)]

    def _plan_variables(self, attacked: AttackOptions, n_held_out: int) -> Iterator[GateNeeds]:
        """What the attacks on confidential variables need."""
        columns = self.training.schema.confidential[::-1]
        # The same for all variables of so many classes of such sizes.
        kinds = {(c.n_categories, self.even.get(c.name), c.name in self.people): c for c in columns}
        for column in kinds.values():
            k, n_attacks = column.n_categories, self._count_attacks(attacked, column)
            given = effect.Tried(n_attacks=n_attacks, n_classes=k, n_variables=len(columns))
            if column.name in self.even:
                given["even"] = self.even[column.name]
            n_scores = len(attacked.deciding("classes" if column.is_categorical else "numbers"))
            people = self.people.get(column.name)
            grouped, least = people is not None, 20 if people is None else 4
            plan = effect.plan_needed_groups if grouped else effect.plan_needed_records
            # Not below the number from which a plan searches: both reckon alike.
            held_out = (people or math.inf) * (self.options.audit.holdout or 1.0)
            n_units = int(min(n_held_out, attacked.max_records, held_out))
            n_test = max(least, min(n_units, attacked.max_test))
            for score, n in plan(attacked, **given).items():
                yield GateNeeds(
                    column.name,
                    score,
                    n,
                    n_units,
                    n_attacks * n_scores,
                    attacked.allowed(score),
                    effect.plan_guess_limit(attacked, score, n_test, grouped=grouped, **given),
                    "subjects" if grouped else "records",
                )

    def _count_attacks(self, attacked: AttackOptions, column: Column) -> int:
        """Attacks on readings of the release, as far as the configuration shows."""
        release = self.options.release
        has_more = bool(release.include) or release.partitions or self.options.training is None
        # Surrogates have no included variable, order or partition of a record beside them.
        has_more &= METHODS[self.options.method.name].releases == "rows"
        readings = [
            "released",
            "bits",
            "surroundings",
            *["everything"] * has_more,
            *["joined"] * bool(self.training.desired),
            *(f"{attack_options.ALONE}{name}" for name in release.include),
            *(f"{attack_options.JOINT}{k}" for k in range(self.n_earlier)),
        ]
        return sum(
            len(attack_options.choose_adversaries(reading, column.is_categorical, attacked))
            for reading in readings
        )


def _plan_records(attacked: AttackOptions, n_members: int, n_others: int) -> list[GateNeeds]:
    """What the attacks on single records need."""
    n_members, n_others = min(n_members, MOST_RECORDS), min(n_others, MOST_RECORDS)
    level = record_decisions.share_level(attacked).level

    def limit_guess(n_others: int) -> float:
        """Upper limit of the advantage of a mere guess at who is in a surrogate release."""
        # Half of the records of the fit are judged by, and of the others a quarter: tracing takes
        # every second for the population.
        mine, others = (
            intervals.measure_exact_interval(n // 2, n, level=level)
            for n in (max(1, n_members // 2), max(1, n_others // 4))
        )
        return min(1.0, mine.upper - others.lower)

    limit = attacked.max_advantage
    # More than `MOST_RECORDS` are never compared.
    found = bisect_left(range(MOST_RECORDS), True, key=lambda n: limit_guess(n) <= limit)
    # Records of the fit are attacked, however many are held out; of few, fewer. Where none is
    # recovered, this share of records still may be.
    most = max(1, min(n_members, record_recovery.count_needed_trials(attacked.max_exposed, level)))
    recovered = intervals.measure_exact_interval(0, most, level=level).upper
    enough = 0 if recovered <= attacked.max_exposed else math.inf
    traced = found if found < MOST_RECORDS else math.inf
    return [
        GateNeeds(RECORD_ATTACKS[name], score, needed, n_others, len(RECORD_ATTACKS), limit, guess)
        for name, score, needed, limit, guess in (
            ("tracing", "advantage", traced, limit, limit_guess(n_others)),
            ("outlying_record", "share_recovered", enough, attacked.max_exposed, recovered),
        )
    ]


def plan_gate(given: run_options.RunOptions, data: Collection, n: int = 0) -> GateForecast:
    """What the limits need, as a few chunks of training records show, beside `n` releases."""
    return GateForecast(given, data, n, measure_even(given, data), count_people(given, data))


def check_gate(run: Run) -> None:
    """Refuse a gate that no release could pass.

    Raises
    ------
    OptionError
        If nothing confidential is attacked, or by no adversary; if held-out records are too few.
    """
    options, training = run.options, run.training
    attacked = find_attack_options(options)
    for column in training.schema.confidential:
        attack_options.check_adversaries(column.name, column.is_categorical, attacked)
    mixes = run.method.releases == "surrogate"
    # Surrogates without noise give exact coefficients away.
    exact = mixes and options.method.consumes() is None
    cases = {
        "unnamed": not training.confidential and not mixes,
        "no_holdout": mixes and not options.audit.holdout > 0,
        "no_adversary": not options.audit.adversaries and training.confidential,
        "unprotected": exact and options.gate.single_records != "unprotected",
    }
    if case := next((name for name, is_so in cases.items() if is_so), ""):
        why, way = read_texts("words.yaml")["closed_gates"][case]
    else:
        forecast = GateForecast(options, training, 0 if mixes else earlier.count_earlier(run))
        needs = forecast.find_hardest()
        # Refused is what cannot pass whatever is released. What passes by chance alone
        # (`has_room`) is the operator's to risk, and only said.
        if needs is None or needs.can_pass:
            return
        why, way = needs.describe(), say("way_to_pass", keys=write_keys(forecast.suggest()))
    problem = f"The gate cannot be passed: {why}"
    remedy = f"{way}, or set [gate] enforce = false, which publishes it as not gated."
    raise OptionError(problem, remedy=remedy, code="gate-cannot-pass")


@dataclass(frozen=True)
class BudgetMeaning:
    """A budget beside the variance it is measured against.

    Parameters
    ----------
    budget
        As configured, in squared units of the desired prediction.
    variance
        Of the desired prediction, estimated: summed over desired targets, or their mean where
        the budget is per label.
    n_records
        Training records that the estimate rests on.
    dependence
        What the fit said of features that depend on one another in these records, where they are
        not all there are. Empty where no features do.
    """

    budget: float
    variance: float
    n_records: int
    dependence: str = ""

    @property
    def share(self) -> float:
        """Budget as a share of the variance."""
        return self.budget / self.variance if self.variance > 0 else float("inf")


@dataclass(frozen=True)
class SampleFindings:
    """What a few chunks show of a run.

    Parameters
    ----------
    constant
        Features that do not vary there.
    meaning
        What the budget means; None for methods without one.
    forecast
        What the method says of itself: its alphabet, its noise; None where it says nothing.
    gate
        What the gate needs of classes of such sizes; None where it is not enforced, or judges
        no variable.
    instead
        Keys with which so many records would do, where the gate will hardly open.
    """

    constant: tuple[str, ...]
    meaning: BudgetMeaning | None
    forecast: Forecast | None
    gate: GateNeeds | None = None
    instead: str = ""

    @property
    def dependence(self) -> str:
        """A sentence where the fit will probably refuse the features; else nothing."""
        if self.meaning is None or not self.meaning.dependence:
            return ""
        return say("dependence", meaning=self.meaning)

    @property
    def warning(self) -> str:
        """A sentence where the gate will hardly open, or by chance alone; else nothing."""
        if self.gate is None or self.gate.has_room:
            return ""
        return say("gate_warning", gate=self.gate, instead=self.instead)


def check_sample(run: Run) -> SampleFindings:
    """Read a few chunks of a run that was checked, and fit where fitting is quick.

    Raises
    ------
    InputError, RankError
        If a variable does not vary, or groups are too small to be read together. If records have
        gaps that the run would fail on, or the fit refuses the features.
    """
    run = replace(run, training=fill_preview(run.options, run.training))
    constant = list_constant(run)
    if _is_whole(run.training):
        run.options.method.examine(run.training.keeping(run.split, "fit"))
    found = SampleFindings(constant, explain_budget(run, strict=True), forecast_run(run))
    if not run.options.gate.enforce:
        return found
    forecast = plan_gate(run.options, run.training, earlier.count_earlier(run))
    needs = forecast.find_hardest()
    has_room = needs is None or needs.has_room
    return replace(found, gate=needs, instead="" if has_room else write_keys(forecast.suggest()))


def explain_budget(run: Run, *, strict: bool = False) -> BudgetMeaning | None:
    """Fit on a few chunks in this process and measure; None for methods without such a budget.

    A rank-deficient sample is fitted with a small ridge: an estimate is enough here.

    Parameters
    ----------
    run
        A run that was checked.
    strict
        Raise what training would raise, where the few chunks are all there are.

    Raises
    ------
    RankError
        If the features are dependent, and `strict`.
    """
    method = run.options.method
    budget = getattr(method, "utility_budget", None)
    if budget is None:
        return None
    shard = read_sample(fill_preview(run.options, run.training))
    fit = partial(run.method.fit, Records.of_shard(shard, run.training.schema), **run.read_files())
    dependence = ""
    with warnings.catch_warnings():
        # Who lacks a label is counted in all records, not in these few.
        warnings.simplefilter("ignore", LeftOutWarning)
        try:
            fitted = fit(method)
        except RankError as error:
            dependence = error.message
            if strict and _is_whole(run.training):
                raise
            # An estimate of the variance needs no exact fit.
            fitted = fit(replace(method, ridge=1e-6))
    predictor = np.asarray(getattr(fitted, "predictor", np.empty((0, 0))))
    if predictor.size == 0:
        return None
    predictor = predictor[: shard.features.shape[1]]
    covariance = CoMoments.of(shard.features).scatter / max(shard.n_records, 1)
    variance = float(np.einsum("ij,ik,kj->", predictor, covariance, predictor))
    if getattr(method, "budget", "total") == "per_label":
        variance /= predictor.shape[1]
    return BudgetMeaning(float(budget), variance, shard.n_records, dependence)


def forecast_run(run: Run) -> Forecast | None:
    """What the method says of a run before it; None where it says nothing."""
    if run.method.forecast is None:
        return None
    fit = fill_preview(run.options, run.training).keeping(run.split, "fit")

    def read_labelled() -> tuple[Shard, Shards]:
        shard = read_sample(replace(fit, only_finite=True))
        return shard, Records.of_shard(shard, fit.schema)

    preview = Preview(
        is_whole=_is_whole(fit) and _is_whole(run.collection),
        read_training=partial(_read_labels, fit),
        read_labelled=read_labelled,
        read_attributes=partial(_read_codes, run.collection),
        held_out=run.split.share,
        has_subjects=run.options.collection.subject is not None,
        n_training=run.training.schema_of_records.n_records,
    )
    return cast(Forecast | None, run.method.forecast(preview, run.options.method))


def measure_even(options: run_options.RunOptions, training: Collection) -> dict[str, Evenness]:
    """What one record of each categorical confidential variable counts as, in a few chunks.

    A class of which too few records will be held out does not count: the audit merges it with
    another, or refuses it.
    """
    least = find_attack_options(options).min_class_records / (options.audit.holdout or 1.0)
    shards, found = _read_labels(training), dict[str, Evenness]()
    desired = np.concatenate([shard.desired for shard in shards])
    confidential = np.concatenate([shard.confidential for shard in shards]).T
    cells, _ = folds.cut_cells(np.zeros(len(desired), np.int64), desired, None)
    for column, values in zip(training.schema.confidential, confidential, strict=True):
        if column.n_categories is None:
            continue
        # Missing labels are NaN or negative codes.
        known = np.isfinite(values) & (values >= 0)
        sizes = np.bincount(values[known].astype(int), minlength=column.n_categories)
        many = sizes * (training.schema_of_records.n_records / max(len(values), 1)) >= least
        known[known] = many[values[known].astype(int)]
        if many.sum() > 1:
            found[column.name] = effect.measure_evenness(cells[known], values[known].astype(int))
    return found


def count_people(options: run_options.RunOptions, training: Collection) -> dict[str, float]:
    """Subjects, by each confidential variable that is one for all of a subject's records.

    From a few chunks: about as many as there are, or more where a subject is in many chunks and
    its variable has no categories.
    """
    if (name := find_subject(options, training)) is None:
        return {}
    # By rows: chunks of whole groups have other edges.
    training = replace(training, groups=(), split=None)
    rows = [training.plan.rows(chunk) for chunk in _choose(training)]
    who = np.concatenate([training.read(name, *one) for one in rows])
    labels = np.concatenate([shard.confidential for shard in _read_labels(training)])
    n = len(np.unique(who)) * training.schema_of_records.n_records / max(len(who), 1)
    n = min(n, len(training.schema_of_records.variable(name).categories or ()) or n)
    alike = [splits.is_of_groups(who[held], y[held]) for y in labels.T for held in [np.isfinite(y)]]
    return {c.name: n for c, one in zip(training.schema.confidential, alike, strict=True) if one}


def suggest_method(collection: Collection, named: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The first method that suits where only what is to be hidden is named, and options of it.

    The first method of all, without options, where none says that it does.
    """
    columns = [variable.column for variable in collection.schema_of_records.variables]

    def read(names: tuple[str, ...]) -> IntArray:
        return _read_codes(replace(collection, attributes=names))

    for name, method in METHODS.items():
        # In the order of the table of methods, by which the first of all is the default.
        if found := method.options.suggest(named, columns, read):
            return name, dict(found)
    return next(iter(METHODS)), {}


def refuse_constant(names: Sequence[str]) -> InputError:
    return InputError(
        f"{', '.join(map(repr, names))} has one and the same value, or none, in every training "
        "record: nothing can be learned of it.",
        remedy="Leave it out of desired, confidential and group, or use records where it varies.",
        code="single_class",
    )


def list_constant(run: Run) -> tuple[str, ...]:
    """Read a few chunks, and refuse variables of one value, which nothing can be learned from.

    Returns
    -------
    features
        Names of those that do not vary there; of features without names their numbers, from 0.

    Raises
    ------
    InputError
        If a desired or confidential variable does not vary in any record. Where these are not all
        chunks, it may vary elsewhere.
    """
    shard, schema = read_sample(run.training), run.training.schema
    names = schema.feature_names or tuple(map(str, range(shard.features.shape[1])))
    columns = [column.name for column in (*schema.desired, *schema.confidential)]
    same = _is_same(np.hstack([shard.desired, shard.confidential]))
    if any(same) and _is_whole(run.training):
        raise refuse_constant(list(compress(columns, same)))
    return tuple(compress(names, _is_same(shard.features)))


def _is_same(table: FloatArray) -> list[bool]:
    """Of each column, whether all values that are there are equal."""
    if len(table) < 2:
        return [False] * table.shape[1]
    low, high = np.fmin.reduce(table, axis=0), np.fmax.reduce(table, axis=0)
    return [bool(same) for same in (low == high) | np.isnan(low)]


def read_sample(training: Collection) -> Shard:
    """A few chunks, evenly spread, as one shard."""
    return join_records([training.shard(chunk) for chunk in _choose(training)])


def _choose(collection: Collection) -> list[int]:
    """Numbers of a few chunks, evenly spread."""
    n_chunks = collection.plan.n_chunks
    # Not the first ones: a table may be sorted.
    spread = np.linspace(0, n_chunks - 1, min(MOST_CHUNKS, n_chunks))
    return [int(chunk) for chunk in np.unique(spread.astype(int))]


def _is_whole(collection: Collection) -> bool:
    return collection.plan.n_chunks <= MOST_CHUNKS


def _read_labels(training: Collection) -> list[Shard]:
    bare = replace(training, reads_features=False, only_finite=False)
    return [bare.shard(chunk) for chunk in _choose(bare)]


def _read_codes(collection: Collection) -> IntArray:
    parts = [collection.codes(*collection.plan.rows(chunk)) for chunk in _choose(collection)]
    return np.concatenate(parts)
