"""Why a release is refused, and what would pass: a diagnosis in sentences, and a configuration.

There are five cases. The order of the records reveals it. There are too few records to compare
methods. A little more would do. The method leaks, and another does not. Or the target itself
reveals what is confidential, and nothing of the ladder passes. What is proposed was tried, on
records that no audit judges.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from shlex import quote
from textwrap import fill
from typing import Any

import numpy as np

from privpipe.attacks.statistics.scores import EXPOSURES
from privpipe.attacks.threats.verdicts.safeguards import MISSED, NOTHING
from privpipe.errors import PrivpipeError
from privpipe.pipeline.runs.configuration_file import write_keys, write_options
from privpipe.pipeline.runs.history import read_attempts
from privpipe.pipeline.runs.run import HOLDOUT, Run
from privpipe.pipeline.runs.run_options import GateSection, RunOptions
from privpipe.pipeline.stages import trial
from privpipe.pipeline.stages.gate import Complaint, find_remedies, say_score
from privpipe.pipeline.stages.trial import ROOM, WEAKEST, Outlook, Rung, TrialRecords, draw_trial
from privpipe.report.audit_text import read_texts, say
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.ladder import identify
from privpipe.store.access import location, objects

MUCH_MORE = 1.25
"""Times of the target that are worth a limit a little weaker, where it is weak already."""


@dataclass(frozen=True)
class Diagnosis:
    """Why, and what would pass.

    Parameters
    ----------
    case
        "order", "unmeasured", "few", "near", "method", "blind" or "target".
    text
        In sentences.
    following
        What would pass, as it was tried; None where nothing did.
    tried
        All that was tried, best first.
    """

    case: str
    text: str
    following: RunOptions | None = None
    tried: tuple[Rung, ...] = ()

    def write(self, title: str) -> str:
        """The configuration that would pass, as TOML that runs as it is."""
        assert self.following is not None
        return write_options(self.following, fill(f"{title} {self.text}", 96))


def try_configured(options: RunOptions, trial: TrialRecords) -> Rung | None:
    """The configured method in a trial; None where it makes no rows, or reads in many rounds."""
    if METHODS[options.method.name].releases != "rows" or options.method.in_rounds:
        return None
    method = options.model_dump(mode="json")["method"]
    return trial.try_method(method, standardise=options.collection.standardise)


GAINS = {"confidential_advantage_max": "gain", "exposed_max": "true positives"}
"""Columns of a picture, by the key of ``[gate]`` that limits them."""


def picture_trial(trial: TrialRecords, configured: Rung | None = None) -> list[dict[str, str]]:
    """Noise, what is configured and the raw records beside the limits, as rows of a table."""
    rows, views = [], {"noise": trial.noise, "configured": configured, "raw": trial.raw}
    for name in dict.fromkeys(one.target for one in trial.noise.outlooks):
        limits = dict[str, str]()
        for view, rung in views.items():
            mine = {one.key: one for one in rung.outlooks if one.target == name} if rung else {}
            limits |= {key: f"{one.allowed:g}" for key, one in mine.items()}
            said = {key: f"{one.gain:.2f}, at most {one.upper:.2f}" for key, one in mine.items()}
            # Where no class is compared with another, as of a few records, nothing is a number.
            said = {key: text.replace("nan, at most nan", "too few") for key, text in said.items()}
            rows += [_as_row(name, view, said)] if mine else []
        rows.append(_as_row(name, "allowed", limits))
    return rows


def _as_row(name: str, view: str, said: Mapping[str, str]) -> dict[str, str]:
    gains = {title: said.get(key, "") for key, title in GAINS.items()}
    return {"confidential": name, "who sees": view} | gains


def forecast_gate(rung: Rung, trial: TrialRecords) -> tuple[str, str]:
    """What the gate will say of what is configured: "open", "closed" or "unsure", and why.

    Closed only where the sample alone proves a leak, open only with the room that a ladder leaves.
    """
    basis = say("forecast_basis", n=len(trial.judge.features), known=trial.measure_target())
    if rung.failed or not rung.outlooks:
        return "unsure", f"{rung.failed or 'nothing is attacked'}. {basis}"
    if said := say_order(trial, {one.key: one.allowed for one in rung.outlooks}):
        return "closed", f"{FORECASTS['closed']}. {said} {UNORDERED}"
    leaking = [one for one in rung.outlooks if one.lower > one.allowed]
    worst = max(leaking or rung.outlooks, key=lambda one: one.excess)
    needed = rung.find_limits()
    is_open = all(needed[one.key] <= one.allowed for one in rung.outlooks)
    # Where nothing is in the raw records, a release shows nothing by what is not found in it.
    shown = {*trial.options.uninformative, *(o.target for o in trial.raw.outlooks if o.lower > 0)}
    if not leaking and (dark := sorted({one.target for one in rung.outlooks} - shown)):
        return "unsure", say("forecast_blind", names=[f'"{one}"' for one in dark], basis=basis)
    case = "closed" if leaking else "open" if is_open else "unsure"
    return case, f"{FORECASTS[case]}: {say_gain(worst)} {basis}"


FORECASTS: Mapping[str, str] = read_texts("words.yaml")["forecasts"]


def diagnose(
    options: RunOptions, trial: TrialRecords, refused: Collection[tuple[str, str]] | None = None
) -> Diagnosis:
    """Climb down the ladder: what would pass, with these limits or with weaker ones.

    Parameters
    ----------
    options
        The configuration; what it says of anything but method and limits stays.
    trial
        Records that no audit judges.
    refused
        What the gate refused, as `identify` says, is not proposed again: this one by default.
    """
    refused = (identify(vars(options.method)),) if refused is None else refused
    limits = {key: getattr(options.gate, key) for key in WEAKEST}
    weakest = {key: max(value, limits[key]) for key, value in WEAKEST.items()}
    if said := say_order(trial, limits):
        return Diagnosis("order", f"{said} No method can pass. {UNORDERED}")
    if not trial.noise.outlooks:
        return Diagnosis("unmeasured", "Nothing could be tried: no adversary could be trained.")
    if not trial.noise.passes(weakest):
        return Diagnosis("few", say_few(options, trial, weakest))
    if budget := getattr(options.method, "distortion_budget", None):  # no other reads attributes
        return Diagnosis("target", say("wider", budget=budget))
    rungs = [
        trial.try_method(method, standardise=scaled)
        for method, scaled in trial.list_ladder()
        if identify(method) not in refused
    ]
    # Within the limits that are set, else within the nearest ones that still say something.
    chosen = [
        _choose(passing, allowed)
        for allowed in (limits, weakest)
        if (passing := [rung for rung in rungs if rung.passes(allowed)])
    ]
    if chosen:
        # Limits that few records have weakened already are weakened a little for much more of the
        # target: .17 instead of .16 for all of it instead of .65.
        is_worth = chosen[-1].retained > MUCH_MORE * chosen[0].retained
        is_worth &= any(limits[key] > getattr(GateSection(), key) for key in limits)
        return _propose(options, trial, chosen[-1 if is_worth else 0], rungs)
    # No room to spare: what is expected is about at the limit, and chance decides. Of fewer records
    # more is expected than an audit of all finds: of hours and income .21 where .17 was found.
    if near := [rung for rung in rungs if rung.passes(weakest, 1 / ROOM)]:
        return _propose(options, trial, min(near, key=lambda rung: rung.worst.upper), rungs)
    return _say_target(rungs)


def _choose(passing: list[Rung], allowed: Mapping[str, float]) -> Rung:
    """The first rung with room to spare that keeps the target nearly as well as any such rung.

    Where none has room to spare, it is chosen alike from those farthest within the limits."""

    def fill(rung: Rung) -> float:
        needed = rung.find_limits()
        return max((needed[key] / max(allowed[key], 1e-6) for key in needed), default=math.inf)

    within = max(1 / ROOM, 1.1 * min(map(fill, passing)))
    fine = [rung for rung in passing if fill(rung) <= within]
    most = max((rung.retained for rung in fine if rung.retained > 0), default=0.0)
    return next(rung for rung in fine if not rung.retained < 0.9 * most)


def follow(options: RunOptions, rung: Rung) -> RunOptions:
    """The configuration with the method of a rung, and limits within which it was found."""
    method = METHODS[rung.method["name"]].options(**rung.method)
    chosen = options.model_copy(update={"method": method})
    chosen = chosen.change("collection", standardise=rung.standardise)
    if chosen.release.layout != "dense":  # what only the method before could do
        chosen = chosen.change("release", layout="dense")
    raised = list_raised(options, rung)
    return chosen.change("gate", **raised) if raised else chosen


def list_raised(options: RunOptions, rung: Rung) -> dict[str, float]:
    """Limits that a rung needs beyond those that are set, and none that say nothing."""
    needed = rung.find_limits()
    set_ones = {key: getattr(options.gate, key) for key in needed}
    most = {key: max(WEAKEST[key], limit) for key, limit in set_ones.items()}
    return {k: min(v, most[k]) for k, v in needed.items() if v > set_ones[k]}


def _propose(options: RunOptions, trial: TrialRecords, best: Rung, rungs: list[Rung]) -> Diagnosis:
    raised, following = list_raised(options, best), follow(options, best)
    limits = {key: getattr(following.gate, key) for key in WEAKEST}
    text = say(
        "proposal",
        is_sure=best.passes(limits),
        n=len(trial.learn.features) + len(trial.judge.features),
        best=best,
        score=say_score(best.worst.score),
        limit=limits[best.worst.key],
        raised=write_keys({("gate", key): value for key, value in raised.items()}),
        others=[rung.describe() for rung in rungs if rung is not best],
    )
    return Diagnosis("near" if raised else "method", text, following, tuple(rungs))


UNORDERED = "Ingest the source with --shuffle, as a new collection, and init that."


def say_order(trial: TrialRecords, limits: Mapping[str, float]) -> str:
    """That the order of the records surely reveals something, and the gate stays closed for it."""
    # A weak leak as well: of whatever method the audit's upper limit is beyond what is allowed.
    leaking = [o for o in trial.order.outlooks if o.lower > 0 and o.upper > limits[o.key]]
    if not leaking or trial.shuffled:
        return ""
    worst = max(leaking, key=lambda one: one.excess)
    return f"The order of the records reveals {worst.target!r}: {say_gain(worst)}"


def say_gain(one: Outlook) -> str:
    """Who gains how much, by which score, and what is allowed of it."""
    return say("gain", one=one, score=say_score(one.score))


def say_few(options: RunOptions, trial: TrialRecords, weakest: Mapping[str, float]) -> str:
    """That not even noise would pass, and how many records would be enough."""
    worst = max(trial.noise.outlooks, key=lambda one: one.upper / weakest[one.key])
    # Records of a group are alike: groups are what there are few of.
    kind, n = "records", trial.n_audited
    if trial.groups is not None:
        kind = f"groups of {options.collection.subject!r}"
        n = round(n * len(np.unique(trial.groups)) / len(trial.groups))
    needed = math.ceil(n * (ROOM * worst.upper / weakest[worst.key]) ** 2)
    more = HOLDOUT if options.audit.holdout < HOLDOUT else 0
    given = {"score": say_score(worst.score), "limit": weakest[worst.key], "more": more}
    return say("few", n=n, kind=kind, worst=worst, needed=needed, **given)


def _say_target(rungs: list[Rung]) -> Diagnosis:
    """Nothing of the ladder passes."""
    useful = [rung for rung in rungs if rung.outlooks and not rung.failed]
    tried = "; ".join(rung.describe() for rung in rungs) or "none, since all were refused"
    if not useful:
        return Diagnosis("target", f"No other method could be fitted. Tried: {tried}.", None)
    # The last of the ladder releases the predicted target and nothing else.
    least = ([rung for rung in useful if rung.is_useful] or useful)[-1]
    given: dict[str, Any] = {"worst": least.worst, "score": say_score(least.worst.score)}
    given |= {"tried": tried, "is_useless": not any(rung.is_useful for rung in useful)}
    said = say("nothing_passes", method=trial.say_method(least.method), **given)
    return Diagnosis("target", said, None, tuple(rungs))


FOLLOWING = "next.toml"
"""In the folder of the report: the configuration that would pass, as it was tried."""

LARGEST_FOUND = 0.5
"""An audit that misses a larger leak shows nothing."""

TRIED = ("leaks", "unproven", "unknown", "utility", "constant")
"""Complaints that another method may answer."""


def find_blind(options: RunOptions, findings: Mapping[str, Any]) -> Diagnosis | None:
    """The same with a larger planted leak to be found, where that alone keeps the gate closed."""
    found, must_find = findings["adversaries"], options.gate.must_find
    missed = [one for one in found.get("power") or () if not one["finds"]]
    size = max((one["size"] or math.inf for one in missed), default=math.inf)
    bad = [one for one in found["decisions"] if one["verdict"] != "safe"]
    if size > LARGEST_FOUND or not all(MISSED in one["reason"] for one in bad):
        return None
    text = say("blind", must_find=must_find, size=size)
    return Diagnosis("blind", text, options.change("gate", must_find=size))


def find_near(options: RunOptions, findings: Mapping[str, Any]) -> Diagnosis | None:
    """The same within weaker limits that still mean something, where the audit found it there."""
    raised: dict[str, float] = {}
    for one in findings["adversaries"]["decisions"]:
        key = "exposed_max" if one["score"] in EXPOSURES else "confidential_advantage_max"
        limit, upper = getattr(options.gate, key), one["gain_upper"] or math.inf
        if one["verdict"] == "unproven" and limit < upper <= WEAKEST[key]:
            # The next attempt has less of the level: its limits are a little wider.
            raised[key] = max(raised.get(key, 0.0), math.ceil(100 * ROOM * upper) / 100)
        elif one["verdict"] != "safe":
            return None
    raised = {key: min(limit, WEAKEST[key]) for key, limit in raised.items()}
    text = say("near", raised=write_keys({("gate", key): limit for key, limit in raised.items()}))
    return Diagnosis("near", text, options.change("gate", **raised)) if raised else None


def lead_out(run: Run, findings: Mapping[str, Any], complaints: list[Complaint]) -> dict[str, Any]:
    """What would let a release pass, tried; and the file that runs it."""
    said, tried = find_remedies(findings, complaints), list[str]()
    bad = [o for o in findings["adversaries"].get("decisions", ()) if o["verdict"] != "safe"]
    is_tried = complaints[0].code in TRIED and run.method.releases == "rows"
    is_blind = bad and all(NOTHING in o["reason"] or MISSED in o["reason"] for o in bad)
    if is_blind and not find_blind(run.options, findings):
        ways = {NOTHING: say("nothing_found"), MISSED: say("no_leak_found", most=LARGEST_FOUND)}
        said += [way for why, way in ways.items() if any(why in one["reason"] for one in bad)]
    elif bad and not {o["target"] for o in bad} & {*run.options.collection.confidential}:
        # An order, an earlier release: of any method the same.
        said += [say("elsewhere")] * is_tried
    elif is_tried:
        # Nor is one proposed that an earlier attempt within the same limits was refused with.
        gate = run.options.model_dump(mode="json", exclude_defaults=True).get("gate")
        earlier = [one["options"] for one in read_attempts(run.report_url)]
        refused = {identify(o["method"]) for o in earlier if o.get("gate") == gate}
        try:
            trial = draw_trial(run.options, run.training, attempt=int(findings["attempt"]) + 1)
            refused.add(identify(vars(run.options.method)))
            found = find_blind(run.options, findings) or diagnose(run.options, trial, refused)
            if found.case not in ("blind", "method"):
                found = find_near(run.options, findings) or found
        except PrivpipeError as error:  # the refusal itself is what matters
            said.append(f"No other method could be tried: {error.message} {error.remedy}")
        else:
            said.append(found.text)
            tried = [rung.describe() for rung in found.tried]
            if found.following is not None:
                place = location.join(run.report_url, FOLLOWING)
                objects.write_file(place, found.write(f"After run {run.run_id} was refused."))
                said.append(f"Next: privpipe run {quote(location.shown(place))}")
    said = said or ["No other method was tried. The report shows what decided."]
    return {"ways_out": " ".join(said), "tried": tried}
