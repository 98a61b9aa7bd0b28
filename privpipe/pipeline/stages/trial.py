"""What would pass, tried on records that no audit judges: three in ten, of few more.

Every method of the ladder is fitted to some of them and attacked on the others by the few
adversaries that find most leaks. Whoever chooses by these records has learned nothing of those that
judge. A choice by the judged ones would be an attempt, and is counted as one.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from privpipe.attacks.adversaries import READS_BITS, attack_options, auxiliary, preparation
from privpipe.attacks.adversaries.evidence import Evidence, Target
from privpipe.attacks.statistics.folds import LEAST_IN_CELL
from privpipe.attacks.statistics.scores import EXPOSURES, Score
from privpipe.attacks.threats.inference import plan_attacks, run_attack, train_adversary
from privpipe.attacks.threats.paired_training import count_unsaid
from privpipe.attacks.threats.verdicts.outcomes import Attack
from privpipe.capabilities import FollowsTarget
from privpipe.cluster.passes.loaded_map import release_by
from privpipe.errors import InputError, PrivpipeError
from privpipe.pipeline.runs.missing_values import fill_preview
from privpipe.pipeline.runs.run import HOLDOUT, find_attack_options, split_by_subject
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.protocols import Column, FloatArray, IntArray, Shard, ShardSchema
from privpipe.records.memory import Records
from privpipe.records.sampling import join_records, take_records
from privpipe.records.schema import expand_indicators, name_indicators
from privpipe.report.audit_text import say
from privpipe.sanitizers import METHODS, chain
from privpipe.sanitizers.ladder import list_ladder
from privpipe.sanitizers.options import MethodOptions
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.writing import is_shuffled
from privpipe.store.keyring.registers import Attempt

SHARE, LEAST, ENOUGH, MOST = 0.3, 1_000, 8_000, 30_000
"""Of the records: three in ten, but of few all up to `ENOUGH`; fewer than `LEAST` order no
methods."""

LEARN = 0.5
"""Of a trial: the fit has these, the adversaries the rest. From .4 of a fifth equalised odds were
learned too coarsely: Adult's race was said to gain .20 behind occupation, and gains .13."""

QUICK = (
    ("released", "quadratic"),
    ("joined", "boosting"),
    ("joined", "logistic"),
    ("joined", "least_squares"),
)
"""Readings and adversaries that found 56 of 62 leaks in a seventh of an audit's time."""

ALONE = (("released", "boosting"), ("released", "logistic"))
"""The same where there is no target to be joined with."""

EXACT = ("bits", READS_BITS)
"""Who reads exact numbers: the predicted wage was advised, whose bits say a worker's ethnicity."""

WEAKEST = {"confidential_advantage_max": 0.2, "exposed_max": 0.1}
"""Limits beyond which a verdict says too little to be proposed."""

ROOM = 1.15
"""An expected limit is so many times what the trial says. Choosing the best of a ladder and the
adversaries that a trial leaves out both make it look better than it is."""

CHANCE = 1.35
"""Of twenty adversaries the luckiest gains a third of what limits are wide, where there is nothing
to be gained. It is .33 on the pupils of `school`, .24 on their tenth."""

RETAINED = 0.5
"""Of what raw records show of the target beyond a guess: less is no use of a release."""


@dataclass(frozen=True)
class Outlook:
    """What an audit of all records would about find of one variable.

    Parameters
    ----------
    target
        The confidential variable.
    adversary, score
        Of the largest expected limit, in units of what is allowed.
    gain, lower
        What was measured in the trial, and its lower limit.
    upper
        Upper limit to be expected of as many records as will judge.
    allowed
        Of this score.
    """

    target: str
    adversary: str
    score: str
    gain: float
    lower: float
    upper: float
    allowed: float

    @property
    def key(self) -> str:
        """The key of ``[gate]`` that holds its limit."""
        return "exposed_max" if self.score in EXPOSURES else "confidential_advantage_max"

    @property
    def excess(self) -> float:
        return self.upper / max(self.allowed, 1e-6)


@dataclass(frozen=True)
class Rung:
    """One way to release the records, as it was tried.

    Parameters
    ----------
    method
        The ``[method]`` table.
    standardise
        Whether features are standardised before.
    outlooks
        Of every variable and of either kind of score, the worst of each.
    retained
        How much of what raw records show of the target is left, in [0, 1]; NaN without a target.
    failed
        Why it could not be tried; else nothing.
    unsaid
        Share of the records that are of a class of the target which is never predicted.
    """

    method: Mapping[str, Any]
    standardise: bool
    outlooks: tuple[Outlook, ...] = ()
    retained: float = math.nan
    failed: str = ""
    unsaid: float = 0.0

    @property
    def worst(self) -> Outlook:
        return max(self.outlooks, key=lambda one: one.excess)

    @property
    def gain(self) -> float:
        """The largest advantage beyond the target's that was measured."""
        gains = [one.gain for one in self.outlooks if one.key != "exposed_max"]
        return max(gains, default=math.nan)

    @property
    def is_useful(self) -> bool:
        return not self.failed and not self.retained < RETAINED

    def find_limits(self, room: float = ROOM) -> dict[str, float]:
        """The limits, in hundredths, within which an audit would about find it."""
        found: dict[str, float] = {}
        for one in self.outlooks:
            # What is no number is within no limit.
            is_known = math.isfinite(one.upper)
            least = math.ceil(100 * room * one.upper) / 100 if is_known else math.inf
            found[one.key] = max(found.get(one.key, one.allowed), least)
        return found

    def passes(self, limits: Mapping[str, float] | None = None, room: float = ROOM) -> bool:
        """Whether it would, within its own limits or others."""
        allowed = limits or {one.key: one.allowed for one in self.outlooks}
        needed = self.find_limits(room)
        # Of what nothing was measured nothing is known.
        within = all(needed[key] <= allowed[key] for key in needed)
        return self.is_useful and bool(needed) and within

    def describe(self) -> str:
        """In a few words; with the limits that it needs where weaker ones mean something."""
        allowed = {one.key: one.allowed for one in self.outlooks}
        weaker = {key: least for key, least in self.find_limits().items() if least > allowed[key]}
        needs = weaker if all(weaker[key] <= WEAKEST[key] for key in weaker) else {}
        return say("rung", one=self, method=say_method(self.method), needs=needs)


def say_method(method: Mapping[str, Any]) -> str:
    """A method with the options that matter.

    >>> say_method({"name": "minimax_least_squares", "n_filtered": 1, "ridge": 0.01})
    'minimax_least_squares with n_filtered = 1'
    """
    given = {k: v for k, v in method.items() if k in ("utility_budget", "n_filtered", "n_bins")}
    each = [f"{key} = {value:.2g}" for key, value in given.items() if value is not None]
    said = ", ".join([*each, *(f'{k} = "{v}"' for k, v in method.items() if k == "variant")])
    return f"{method['name']} with {said}" if said else str(method["name"])


@dataclass(frozen=True, eq=False)
class TrialRecords:
    """Records that no audit judges, and how what is made of them is attacked.

    Parameters
    ----------
    learn, judge
        Records that methods are fitted to, and those that adversaries are given.
    schema
        Of both.
    groups : (n_judge,), optional
        Whose the judging records are.
    options
        Limits, level and bounds of the next attempt.
    n_audited
        Records that its audit will be given.
    shuffled
        Whether ingesting put them in a random order: what it seems to reveal is chance.
    drawn, whose
        Labels of both in their order, without features, and whose each is; without it those that
        judge.
    """

    learn: Shard
    judge: Shard
    schema: ShardSchema
    groups: IntArray | None
    options: attack_options.AttackOptions
    n_audited: int
    shuffled: bool = False
    drawn: Shard | None = None
    whose: IntArray | None = None

    def _prepare(self, released: FloatArray) -> Evidence:
        return preparation.prepare_evidence(
            released,
            self.judge.confidential,
            columns=self.schema.confidential,
            groups=self.groups,
            desired=auxiliary.Auxiliary(self.judge.desired, self.schema.desired),
            options=self.options,
        )

    def foresee(self, released: FloatArray) -> tuple[Outlook, ...]:
        """What the audit would find of a release of the judging records."""
        evidence = self._prepare(released)
        # The levels of the intervals are those of the whole plan.
        plan = plan_attacks(evidence, self.options)
        quick = (*QUICK, EXACT) if self.schema.desired else (*QUICK, EXACT, *ALONE)
        narrower = math.sqrt(min(1.0, len(evidence.truth) / self.n_audited))
        found: dict[tuple[str, str], Outlook] = {}
        # Records of a person are pooled by the audit, too: all of them is the last of the plan.
        pooled = {
            attack.target: attack for attack in plan if attack.source == attack_options.GROUPS
        }
        for attack in plan:
            if (attack.source, attack.adversary) not in quick and attack not in pooled.values():
                continue
            for score in run_attack(evidence, attack, self.options).deciding(self.options):
                one = self._expect(attack, score, narrower)
                best = found.setdefault((one.target, one.key), one)
                if not one.excess <= best.excess:  # what is no number is the worst
                    found[one.target, one.key] = one
        return tuple(found.values())

    def _expect(self, attack: Attack, score: Score, narrower: float) -> Outlook:
        # Limits of what is estimated narrow with the root of the records.
        high = score.gain + (score.gain_upper - score.gain) * narrower
        allowed, name = self.options.allowed(score.name), attack.adversary
        return Outlook(attack.target, name, score.name, score.gain, score.gain_lower, high, allowed)

    @cached_property
    def noise(self) -> Rung:
        """What would be found of a release that reveals nothing: no gain, but by chance."""
        drawn = np.random.default_rng(0).standard_normal((len(self.judge.features), 1))
        # How wide limits are is measured; what this one draw gained is an accident of it.
        outlooks = tuple(
            replace(o, gain=0.0, lower=o.lower - o.gain, upper=CHANCE * (o.upper - o.gain))
            for o in self.foresee(drawn)
        )
        return Rung({"name": "noise"}, False, outlooks)

    @cached_property
    def order(self) -> Rung:
        """What the order of the records reveals, which every release of rows has."""
        # Nothing is fitted to it, so all may judge; of fewer the neighbours of each are farther.
        every = self if self.drawn is None else replace(self, judge=self.drawn, groups=self.whose)
        places = np.arange(len(every.judge.features), dtype=np.float64)
        return Rung({"name": "order"}, False, every.foresee(places[:, None]))

    @cached_property
    def raw(self) -> Rung:
        """What would be found of the records themselves."""
        return Rung({"name": "raw"}, False, self.foresee(self.judge.features), retained=1.0)

    def measure_target(self) -> dict[str, float]:
        """By confidential variable, the advantage of whoever knows the target and no more."""
        evidence = self._prepare(np.arange(len(self.judge.features))[:, None] % 2.0)
        found = {column.name: 0.0 for column in evidence.columns}
        for attack in plan_attacks(evidence, self.options):
            if attack.source == "wanted":
                scores = run_attack(evidence, attack, self.options).deciding(self.options)
                known = [one.advantage for one in scores if one.name not in EXPOSURES]
                found[attack.target] = max((x for x in known if math.isfinite(x)), default=0.0)
        return found

    def try_method(self, method: Mapping[str, Any], *, standardise: bool) -> Rung:
        """Fit it to some records and attack its release of the others."""
        row, records = METHODS[method["name"]], Records.of_shard(self.learn, self.schema)
        try:
            options = row.options(**method)
            if standardise:
                fitted = chain.fit_standardised(row, records, options)
            else:
                fitted = row.fit(records, options)
            released = release_by(fitted, self.judge, self.schema)
            # Where a row is made of the target prediction alone the audit attacks that.
            read = released
            if isinstance(fitted, FollowsTarget):
                read = fitted.predict_target(self.judge.features)
            # Where the trial is lucky the audit need not be: nothing passes more surely than noise.
            least = {(o.target, o.key): o.upper for o in self.noise.outlooks}
            seen = [(o, least.get((o.target, o.key), o.upper)) for o in self.foresee(read)]
            outlooks = tuple(replace(o, upper=max(o.upper, known)) for o, known in seen)
            retained, unsaid = self._measure_retained(released), self._find_unsaid(released)
            return Rung(method, standardise, outlooks, retained, unsaid=unsaid)
        except (PrivpipeError, ValueError, TypeError) as error:
            # A message of ours holds no value of a record; of others nothing is said.
            known = error.message if isinstance(error, PrivpipeError) else type(error).__name__
            return Rung(method, standardise, failed=known.rstrip("."))  # a part of a sentence

    def as_read_by(self, method: MethodOptions) -> "TrialRecords":
        """The same records as a method reads them: of attributes, their indicators."""
        if not method.columns().get("attributes"):
            return self
        columns = self.schema.attributes
        learn, judge = (
            replace(one, features=expand_indicators(one.attributes.astype(np.int64), columns))
            for one in (self.learn, self.judge)
        )
        names = name_indicators(columns)
        schema = replace(self.schema, n_features=len(names), feature_names=names)
        return replace(self, learn=learn, judge=judge, schema=schema)

    def _measure_retained(self, released: FloatArray) -> float:
        """The least share that any target keeps of its advantage over a guess."""
        shares = []
        for column in self.schema.desired:
            raw, after = (self._predict(x, column) for x in (self.judge.features, released))
            # What is the same of all records predicts nothing, also where nothing beats a guess.
            varies = bool(np.ptp(released, axis=0).any())
            shares.append(min(1.0, max(0.0, after) / raw) if raw > 0 else float(varies))
        return min(shares, default=math.nan)

    def _find_unsaid(self, released: FloatArray) -> float:
        """The largest share, by target, of records of classes that the release never predicts."""
        classes = [one for one in self.schema.desired if one.is_categorical]
        targets = [Target(self._prepare_target(released, c), 0, self.options) for c in classes]
        made = [train_adversary(one, "released", "logistic") for one in targets]
        return max(map(count_unsaid, targets, made), default=0.0)

    def _prepare_target(self, x: FloatArray, column: Column) -> Evidence:
        truth = self.judge.desired[:, [self.schema.desired.index(column)]]
        about: Any = {"columns": (column,), "groups": self.groups, "options": self.options}
        return preparation.prepare_evidence(x, truth, **about)

    def _predict(self, x: FloatArray, column: Column) -> float:
        """Best advantage over a guess by least squares and trees, trained anew."""
        evidence, found = self._prepare_target(x, column), [0.0]
        kind: Any = "classes" if column.is_categorical else "numbers"
        for name in ("least_squares", "boosting"):
            attack = Attack(column.name, kind, "released", name)
            outcome = run_attack(evidence, attack, self.options)
            measured = [one for one in outcome.scores if one.name in ("accuracy", "r2")]
            found += [one.advantage for one in measured if math.isfinite(one.advantage)]
        return max(found)

    def list_ladder(self) -> Iterator[tuple[dict[str, Any], bool]]:
        """Ways to release less and less, and whether features are standardised before."""
        return list_ladder(Records.of_shard(self.learn, self.schema), self.judge.features)


def draw_trial(options: RunOptions, training: Collection, *, attempt: int = 1) -> TrialRecords:
    """Three in ten records, of few more, of those that no audit judges.

    Parameters
    ----------
    options
        Limits, level and what is held out.
    training
        Labelled records, with their variables.
    attempt
        Number of the attempt that the trial is for: later ones have less of the level.

    Raises
    ------
    InputError
        If they are too few, nothing confidential is named, or the target reveals what is.
    """
    split = split_by_subject(options, training)
    # As if half were held out: whoever holds out more than now has not chosen by those records.
    share = max(split.share, HOLDOUT)
    group = (split.group,) if split.group else ()
    rest = fill_preview(options, training).keeping(replace(split, share=share), "fit")
    free = replace(rest, confidential=(*training.confidential, *group), only_finite=True)
    n_records = training.schema_of_records.n_records
    shard = read_records(free, min(MOST, max(ENOUGH, math.ceil(SHARE * n_records))))
    n = len(shard.features)
    if n < LEAST or not training.confidential:
        raise InputError(
            f"A trial needs {LEAST:,} records that no audit judges, not {n:,}, and a variable.",
            remedy="Ingest more records.",
            code="too-few",
        )
    groups = None
    if group:
        groups = shard.confidential[:, -1].astype(np.int64)
        shard = replace(shard, confidential=shard.confidential[:, :-1])
    _refuse_revealed(shard, training.schema)
    units = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    learns = np.random.default_rng(0).random(int(units.max()) + 1)[units] < LEARN
    judging = None if groups is None else groups[~learns]
    attacked = find_attack_options(options, Attempt(attempt, 0))
    # Whoever names few adversaries for an audit is not to be advised by what these do not find.
    names = dict.fromkeys((*attacked.adversaries, *(name for _, name in (*QUICK, *ALONE))))
    attacked = replace(attacked, adversaries=tuple(names))
    return TrialRecords(
        take_records(shard, np.flatnonzero(learns)),
        take_records(shard, np.flatnonzero(~learns)),
        training.schema,
        judging,
        attacked,
        min(int(n_records * options.audit.holdout) or n_records, attacked.max_records),
        # Of several partitions the order of these is as it was.
        len(training.schema_of_records.partitions) < 2 and is_shuffled(options.training_path),
        drawn=replace(shard, features=np.empty((n, 0))),
        whose=groups,
    )


REVEALED = "target-reveals"


def _refuse_revealed(shard: Shard, schema: ShardSchema) -> None:
    """What the target reveals of every record no release can hide that serves it."""
    if not schema.desired:
        return
    values, cells = np.unique(shard.desired, axis=0, return_inverse=True)
    if len(cells) < LEAST_IN_CELL * len(values):
        return
    for column, codes in zip(schema.confidential, shard.confidential.T, strict=True):
        # Of a rare class a sample may hold no record: then it shows nothing.
        varies = len(np.unique(codes)) > 1
        if varies and len(np.unique(np.column_stack([cells, codes]), axis=0)) == len(values):
            names = ", ".join(repr(one.name) for one in schema.desired)
            raise InputError(
                f"Whoever knows {names} knows {column.name!r}: of {len(cells):,} records all with "
                "the same of the one have the same of the other. Nothing can hide it.",
                remedy=f"Take {column.name!r} out of confidential, or {names} out of desired.",
                code=REVEALED,
            )


def read_records(collection: Collection, n: int) -> Shard:
    """At most so many records, of chunks that are evenly spread."""
    n_chunks = collection.plan.n_chunks
    per_chunk = max(1.0, collection.schema_of_records.n_records / n_chunks / 2)
    n_read = min(n_chunks, max(4, math.ceil(n / per_chunk)))
    spread = np.unique(np.linspace(0, n_chunks - 1, n_read).astype(int))
    whole = join_records([collection.shard(int(chunk)) for chunk in spread])
    drawn = np.random.default_rng(0).permutation(len(whole.features))[:n]
    return take_records(whole, np.sort(drawn))
