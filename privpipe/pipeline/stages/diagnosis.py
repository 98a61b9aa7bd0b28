"""Why a release is refused, and what would pass: a diagnosis in sentences, and a configuration.

Five cases: the order of the records reveals it; too few records judge for any method; a little
more would do; the method leaks, and another does not; or the target itself reveals what is
confidential, and nothing of the ladder passes. What is proposed was tried, on records that no audit
judges.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from shlex import quote
from textwrap import fill
from typing import Any

from privpipe.errors import PrivpipeError
from privpipe.pipeline.runs.configuration_file import write_keys, write_options
from privpipe.pipeline.runs.run import HOLDOUT, Run
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.gate import Complaint, find_remedies, say_score
from privpipe.pipeline.stages.trial import ROOM, WEAKEST, Rung, TrialRecords, draw_trial, say_method
from privpipe.sanitizers import METHODS
from privpipe.store.access.location import join, shown
from privpipe.store.access.objects import write_file


@dataclass(frozen=True)
class Diagnosis:
    """Why, and what would pass.

    Parameters
    ----------
    case
        "order", "unmeasured", "few", "near", "method" or "target".
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
    """The configured method in a trial; None where it reads other things, or in many rounds."""
    row = METHODS[options.method.name]
    if row.releases != "rows" or options.method.in_rounds or options.method.needs() & OTHER:
        return None
    method = options.model_dump(mode="json")["method"]
    return trial.try_method(method, standardise=options.collection.standardise)


OTHER = {"attributes"}
"""Roles of which a trial has no records."""


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
    known = ", ".join(f"{share:.2f} of {name!r}" for name, share in trial.measure_target().items())
    basis = f"From {len(trial.judge.features):,} records."
    if trial.schema.desired:
        basis += f" The target alone reveals, as an advantage: {known}."
    if rung.failed or not rung.outlooks:
        return "unsure", f"{rung.failed or 'nothing is attacked'}. {basis}"
    if said := say_order(trial, {one.key: one.allowed for one in rung.outlooks}):
        return "closed", f"{FORECASTS['closed']}. {said} {UNORDERED}"
    leaking = [one for one in rung.outlooks if one.lower > one.allowed]
    worst = max(leaking or rung.outlooks, key=lambda one: one.excess)
    needed = rung.find_limits()
    is_open = all(needed[one.key] <= one.allowed for one in rung.outlooks)
    case = "closed" if leaking else "open" if is_open else "unsure"
    return case, (
        f"{FORECASTS[case]}: {worst.adversary.replace('_', ' ')} gains {worst.gain:.2f} of "
        f"{worst.target!r} in {say_score(worst.score)} ({worst.lower:.2f} to {worst.upper:.2f}). "
        f"Allowed: {worst.allowed:g}. {basis}"
    )


FORECASTS = {
    "open": "The gate will probably open",
    "closed": "The gate will probably stay closed",
    "unsure": "The gate may open or stay closed",
}


def diagnose(options: RunOptions, trial: TrialRecords, *, refused: bool = True) -> Diagnosis:
    """Climb down the ladder: what would pass, with these limits or with weaker ones.

    Parameters
    ----------
    options
        The configuration; what it says of anything but method and limits stays.
    trial
        Records that no audit judges.
    refused
        Whether the gate refused this very method: it is not proposed again.
    """
    limits = {key: getattr(options.gate, key) for key in WEAKEST}
    weakest = {key: max(value, limits[key]) for key, value in WEAKEST.items()}
    if said := say_order(trial, limits):
        return Diagnosis("order", f"{said} No method can pass. {UNORDERED}")
    if not trial.noise.outlooks:
        return Diagnosis("unmeasured", "Nothing could be tried: no adversary could be trained.")
    if not trial.noise.passes(weakest):
        return Diagnosis("few", say_few(options, trial, weakest))
    rungs = [
        trial.try_method(method, standardise=scaled)
        for method, scaled in trial.list_ladder()
        if not (refused and method["name"] == options.method.name)
    ]
    # Within the limits that are set, else within the nearest ones that still say something.
    for allowed in (limits, weakest):
        if passing := [rung for rung in rungs if rung.passes(allowed)]:
            best = _choose(passing, allowed)
            return _propose(options, trial, best, rungs)
    # No room to spare: what is expected keeps within, and chance decides.
    if near := [rung for rung in rungs if rung.passes(weakest, 1.0)]:
        return _propose(options, trial, min(near, key=lambda rung: rung.worst.upper), rungs)
    return _say_target(rungs)


def _choose(passing: list[Rung], allowed: Mapping[str, float]) -> Rung:
    """The first of the ladder with room to spare, of which most is left; else the farthest in."""

    def fill(rung: Rung) -> float:
        needed = rung.find_limits()
        return max((needed[key] / max(allowed[key], 1e-6) for key in needed), default=math.inf)

    spare = [rung for rung in passing if fill(rung) <= 1 / ROOM]
    return spare[0] if spare else min(passing, key=fill)


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
    n = len(trial.learn.features) + len(trial.judge.features)
    is_sure = best.passes(limits)
    text = (
        f"What {'would' if is_sure else 'may'} pass, tried on {n:,} records, none of which judges: "
        f"{best.describe()}."
    )
    if not is_sure:
        text += f" Chance decides: up to {best.worst.upper:.2f} in {say_score(best.worst.score)}"
        text += f" is expected, {limits[best.worst.key]:g} is the most that means anything."
    if raised:
        said = write_keys({("gate", key): value for key, value in raised.items()})
        text += f" It needs weaker limits, which the release will state: {said}."
    if others := [rung.describe() for rung in rungs if rung is not best]:
        text += f" Also tried: {'; '.join(others)}."
    return Diagnosis("near" if raised else "method", text, following, tuple(rungs))


UNORDERED = "Shuffle the rows of the source, ingest them again, then run."


def say_order(trial: TrialRecords, limits: Mapping[str, float]) -> str:
    """That the order of the records surely reveals more than is allowed; nothing where not."""
    leaking = [one for one in trial.order.outlooks if one.lower > limits[one.key]]
    if not leaking:
        return ""
    worst = max(leaking, key=lambda one: one.excess)
    return (
        f"The order of the records reveals {worst.target!r}: {worst.adversary} gains "
        f"{worst.gain:.2f} in {say_score(worst.score)} ({worst.lower:.2f} to {worst.upper:.2f}). "
        f"Allowed: {limits[worst.key]:g}."
    )


def say_few(options: RunOptions, trial: TrialRecords, weakest: Mapping[str, float]) -> str:
    """That not even noise would pass, and how many records would be enough."""
    worst = max(trial.noise.outlooks, key=lambda one: one.upper / weakest[one.key])
    needed = math.ceil(trial.n_audited * (ROOM * worst.upper / weakest[worst.key]) ** 2)
    text = (
        f"Too few records for any method: {trial.n_audited:,} would judge, and even noise reaches "
        f"{worst.upper:.2g} in {say_score(worst.score)}. Only {weakest[worst.key]:g} or less means "
        f"anything: about {needed:,.0f} would have to judge."
    )
    if options.audit.holdout < HOLDOUT:
        text += f" First hold out half: [audit] holdout = {HOLDOUT:g}."
    return text


def _say_target(rungs: list[Rung]) -> Diagnosis:
    """Nothing of the ladder passes."""
    useful = [rung for rung in rungs if rung.outlooks and not rung.failed]
    tried = "; ".join(rung.describe() for rung in rungs)
    if not useful:
        return Diagnosis("target", f"No other method could be fitted. Tried: {tried}.", None)
    # The last of the ladder releases the predicted target and nothing else.
    least, worst = useful[-1], useful[-1].worst
    said = (
        f"Nothing that was tried would pass: the predicted target itself reveals {worst.target!r} "
        f"({say_method(least.method)}: gain {worst.gain:.2f} in {say_score(worst.score)}, up to "
        f"{worst.upper:.2f}; allowed {worst.allowed:g}). Tried: {tried}."
    )
    said += " Choose another target, or ingest without the columns that reveal it (--drop)."
    return Diagnosis("target", said, None, tuple(rungs))


FOLLOWING = "next.toml"
"""In the folder of the report: the configuration that would pass, as it was tried."""

TRIED = ("leaks", "unproven", "unknown", "utility", "constant")
"""Complaints that another method may answer."""


def lead_out(run: Run, findings: Mapping[str, Any], complaints: list[Complaint]) -> dict[str, Any]:
    """What would let a release pass, tried; and the file that runs it."""
    said, tried = find_remedies(findings, complaints), list[str]()
    if complaints[0].code in TRIED and run.method.releases == "rows":
        try:
            trial = draw_trial(run.options, run.training, attempt=int(findings["attempt"]) + 1)
            found = diagnose(run.options, trial)
        except PrivpipeError as error:  # the refusal itself is what matters
            said.append(f"No other method could be tried: {error.message}")
        else:
            said.append(found.text)
            tried = [rung.describe() for rung in found.tried]
            if found.following is not None:
                place = join(run.report_url, FOLLOWING)
                write_file(place, found.write(f"After run {run.run_id} was refused."))
                said.append(f"Next: privpipe run {quote(shown(place))}")
    said = said or ["No other method was tried. The report shows what decided."]
    return {"ways_out": " ".join(said), "tried": tried}
