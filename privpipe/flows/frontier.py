"""How much privacy can be had at all: many filters of one collection, each audited alike.

Every filter is learned on the training records that are not held out, and judged on held-out ones:
how well the wanted variables are predicted, and how well the *strongest* adversary predicts the
confidential ones, from single records and from records of one group.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import platformdirs
from matplotlib.figure import Figure

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_plan import plan_attacks
from privpipe.attacks.kinds.inference import run_attack
from privpipe.attacks.kinds.verdicts.attack_report import AttackReport, summarise_outcomes
from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.judging.evidence_sample import sample_evidence
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.passes.sample_drawing import Published
from privpipe.errors import InputError, OptionError, PrivpipeError
from privpipe.pipeline.runs.run import digest_options, find_attack_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.steps import expect_steps, step
from privpipe.protocols import RecordMap
from privpipe.report.style import MARKERS, ThemeName, finish_figure, new_figure
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.composed.standardiser import fit_standardised, without_standardiser
from privpipe.sanitizers.options import make_options
from privpipe.store.collections.collection import Collection
from privpipe.store.models.artifacts import open_model, write_model

RAW = "raw"


@dataclass(frozen=True)
class Point:
    """One filter of the frontier: a method and its options; "raw" releases records as they are.

    Parameters
    ----------
    method, options
        Row of the table of methods, and what it is asked for.
    warm
        The point whose filter this one starts from: that of the trade-off before it.
    """

    method: str
    options: Mapping[str, Any]
    warm: Point | None = None

    @property
    def name(self) -> str:
        """Readable, and unique within a frontier."""
        told = ", ".join(f"{key} {_shown(value)}" for key, value in self.options.items())
        return f"{self.method} ({told})" if told else self.method

    @property
    def history(self) -> str:
        """Its name and those of the points before it: what its filter depends on."""
        return f"{self.name} from {self.warm.history}" if self.warm else self.name


def _shown(value: Any) -> str:
    return " and ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def plan_points(
    n_features: int,
    widths: Sequence[int],
    tradeoffs: Sequence[float],
    adversaries: Sequence[tuple[str, ...]],
) -> tuple[Point, ...]:
    """Every filter to be learned: baselines at each width, minimax filters at each setting.

    Raises
    ------
    OptionError
        If a width is not one of records of so many features.
    """
    wrong = [width for width in widths if not 1 <= width <= n_features]
    if wrong or not widths:
        raise OptionError(
            f"There is no filter of {wrong[:1] or 'no'} outputs of {n_features} features.",
            remedy=f"Give widths of 1 to {n_features}.",
        )
    points = [Point(RAW, {})]
    for method in METHODS.values():
        if method.vary is None:
            continue
        for options in method.vary(widths, tradeoffs, adversaries):
            before = points[-1]
            follows = method.warms and before.method == method.name
            follows = follows and _without_tradeoff(before.options) == _without_tradeoff(options)
            points.append(Point(method.name, options, before if follows else None))
    return tuple(points)


def _without_tradeoff(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "tradeoff"}


def find_frontier_folder(options: RunOptions) -> Path:
    """Where finished points are kept until all are done: by configuration and training records."""
    checked = check_stage(options)
    identity = f"{digest_options(options)} {checked.training.digest}"
    root = os.environ.get("PRIVPIPE_CACHE") or platformdirs.user_cache_dir("privpipe")
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder = Path(root) / "frontier" / name
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def measure_frontier(
    options: RunOptions, points: Sequence[Point], executor: Executor, models: Path
) -> dict[str, Any]:
    """Learn and audit every filter; a point that cannot be had says why.

    Parameters
    ----------
    options
        The configuration: its variables, its held-out records and its audit, not its method.
    points
        See `plan_points`.
    executor
        Who works.
    models
        Folder of the filters that others start from, so that an interrupted frontier goes on.

    Returns
    -------
    frontier
        JSON-ready: per point name, and per variable the strongest accuracy with limits.

    Raises
    ------
    OptionError
        If no records are held out.
    """
    if not options.audit.holdout > 0:
        raise OptionError(
            "[audit] holdout is 0: filters would be judged by records that they learned from.",
            remedy="Hold out a share of the training records, as 0.4.",
        )
    checked = check_stage(options)
    fit = ShardedCollection(checked.training.keeping(checked.split, "fit"), executor)
    held_out = checked.training.keeping(checked.split, "held_out")
    attack = find_attack_options(options)
    standardises = options.collection.standardise
    # All that decides what is measured: a point judged in another way is another step.
    judged = asdict(attack.without_limits())
    settings = json.dumps({"standardise": standardises} | judged, sort_keys=True)
    expect_steps(len(points), [(one.history, settings) for one in points])
    group = options.audit.group
    rows = [
        step(
            one.history,
            partial(_measure_point, one, fit, held_out, attack, group, standardises, models),
            settings,
        )
        for one in points
    ]
    return {"format_version": 1, "group": group, "points": rows}


def _measure_point(
    point: Point,
    fit: ShardedCollection,
    held_out: Collection,
    options: AttackOptions,
    group: str | None,
    standardises: bool,
    models: Path,
) -> dict[str, Any]:
    about: dict[str, Any] = {
        "method": point.method,
        "name": point.name,
        "options": dict(point.options),
    }
    warm = _find_model(point.warm, models) if point.warm else None
    about["starts_from"] = point.warm.name if point.warm and warm else None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # widths beyond the useful ones are the question
        try:
            named = _learn(point, fit, models, standardises, warm)
            source = RAW if point.method == RAW else "released"
            wanted = replace(held_out, desired=(), confidential=held_out.desired)
            found = {
                role: _judge(collection, options, named, group, source)
                for role, collection in (("target", wanted), ("private", held_out))
            }
        except PrivpipeError as error:
            return {**about, "status": "unknown", "reason": str(error)}
    return {**about, "status": "measured", **found}


def _place_model(point: Point, models: Path) -> Path:
    return models / f"{hashlib.sha256(point.history.encode()).hexdigest()[:16]}.zarr"


def _find_model(point: Point, models: Path) -> Path | None:
    """Where the filter of a point is, if it could be learned."""
    place = _place_model(point, models)
    return place if place.exists() else None


def _learn(
    point: Point,
    fit: ShardedCollection,
    models: Path,
    standardises: bool,
    warm: Path | None = None,
) -> dict[str, str]:
    """Train a filter and store it where the audit and the next trade-off find it.

    Raw records stand beside what any filter releases: one that learns nothing will do.
    """
    place = _place_model(point, models)
    if point.method == RAW:
        row = next(one for one in METHODS.values() if one.vary is not None and not one.learns)
        assert row.vary is not None
        point = Point(row.name, row.vary((1,), (), ())[0])
    method = METHODS[point.method]
    options = make_options(method.options, {"name": point.method, **point.options}, point.name)
    method.check(options, fit.schema)
    learn = partial(fit_standardised, method) if standardises and method.scales else method.fit
    extra = {"warm": without_standardiser(open_model(str(warm)))} if warm else {}
    fitted: RecordMap = learn(fit, options, **extra)
    if place.exists():  # interrupted between its model and its audit
        shutil.rmtree(place)
    return {"model_url": str(place), "model_digest": write_model(fitted, str(place))}


def _judge(
    collection: Collection,
    options: AttackOptions,
    named: Mapping[str, str],
    group: str | None,
    source: str,
) -> dict[str, Any]:
    """Of each variable the strongest adversary by accuracy or R squared, and by group."""
    found = sample_evidence(
        collection,
        options,
        published=Published(group=group),
        model_url=named["model_url"],
        model_digest=named["model_digest"],
    )
    # What is released alone: no control, no bits, no wanted answer.
    evidence = replace(found, sources={"released": found.sources[source]})
    plan = plan_attacks(evidence, options)
    outcomes = [run_attack(evidence, one, options) for one in plan]
    report = summarise_outcomes(outcomes, plan, options, n_records=evidence.n_records, n_given=0)
    return {column.name: _strongest(report, column.name) for column in evidence.columns}


def _strongest(report: AttackReport, target: str) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for source in ("released", "groups"):
        for score in ("accuracy", "r2"):
            try:
                name, value = report.strongest(target, score, source)
            except InputError:
                continue
            said[source] = {
                "adversary": name,
                "score": score,
                "estimate": value.interval.estimate,
                "lower": value.interval.lower,
                "upper": value.interval.upper,
                "baseline": value.baseline,
            }
    return said


def plot_frontier(frontier: Mapping[str, Any], *, theme: ThemeName = "light") -> Figure:
    """The strongest private accuracy over the target's, first variable of each, with limits."""
    figure, axes, look = new_figure(theme, height=4.6)
    measured = [point for point in frontier["points"] if point["status"] == "measured"]
    methods = list(dict.fromkeys(_series(point) for point in measured))
    for i, method in enumerate(methods):
        mine = [point for point in measured if _series(point) == method]
        x, y = ([_first(point, role) for point in mine] for role in ("target", "private"))
        # Colours repeat after the last one; the marker then differs, and the pair never does.
        axes.errorbar(
            [one["estimate"] for one in x],
            [one["estimate"] for one in y],
            xerr=_reach(x),
            yerr=_reach(y),
            linestyle="none",
            marker=MARKERS[(i + i // len(look.series)) % len(MARKERS)],
            color=look.series[i % len(look.series)],
            elinewidth=0.8,
            label=method,
        )
    if measured:
        guess = _first(measured[0], "private")["baseline"]
        axes.axhline(guess, color=look.faint, linestyle="--", linewidth=1, label="guessing")
    axes.set(xlabel="wanted prediction", ylabel="strongest private prediction")
    finish_figure(axes, look, title="")
    return figure


def _series(point: Mapping[str, Any]) -> str:
    names = point["options"].get("adversary")
    return f"{point['method']} against {_shown(names)}" if names else str(point["method"])


def _first(point: Mapping[str, Any], role: str) -> dict[str, Any]:
    """The strongest of the first variable: from single records, or from records of a group."""
    found = list(next(iter(point[role].values())).values())
    strongest: dict[str, Any] = found[0]
    if role == "private":
        strongest = max(found, key=lambda one: one["estimate"])
    return strongest


def _reach(values: Sequence[Mapping[str, float]]) -> list[list[float]]:
    return [
        [max(one["estimate"] - one["lower"], 0.0) for one in values],
        [max(one["upper"] - one["estimate"], 0.0) for one in values],
    ]
