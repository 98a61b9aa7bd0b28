"""What can be reproduced, by name, and the function that runs one."""

from __future__ import annotations

import difflib
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.reproduce.result import Reproduction
from flows.reproduce.steps import Steps, follow_steps
from flows.reproduce.stored_steps import find_folder
from privpipe.errors import InputError, OptionError

Function = Callable[..., Reproduction]
"""Takes the data folder and the number of runs, and what `PaperFigure.small` names."""


@dataclass(frozen=True)
class PaperFigure:
    """One figure or table of a paper that can be done again.

    Parameters
    ----------
    title, paper
        What it shows, and where it is from.
    function
        ``module:function`` that takes the data folder and the number of runs; loaded when it
        is run, so that listing costs nothing.
    files
        Files of the data folder it reads; none where the data are made.
    runs
        Runs averaged by default.
    takes, takes_small
        What it takes with these runs, and small, on two cores.
    small, small_runs
        Options of the function, and runs, of the size that ends within five minutes.
    remedy
        What to do when a file is missing.
    """

    title: str
    paper: str
    function: str
    files: tuple[str, ...]
    runs: int
    takes: str
    takes_small: str
    small: Mapping[str, Any] = field(default_factory=dict)
    small_runs: int = 1
    remedy: str = "Name the folder of the papers' data sets."

    def load(self) -> Function:
        """Import the function."""
        module, name = self.function.split(":")
        found: Function = getattr(importlib.import_module(module), name)
        return found


FIGURES: dict[str, PaperFigure] = {
    "xu-fig4": PaperFigure(
        title="Null-space cleaning without attack",
        paper="Xu et al. 2017, figure 4",
        function="flows.reproduce.xu:reproduce_xu_fig4",
        files=("scene.npz", "wq.npz", "oes97.npz"),
        runs=10,
        takes="2 to 5 minutes",
        takes_small="half a minute",
    ),
    "xu-fig6": PaperFigure(
        title="Null-space cleaning, attack retrained",
        paper="Xu et al. 2017, figure 6",
        function="flows.reproduce.xu:reproduce_xu_fig6",
        files=("scene.npz", "wq.npz", "oes97.npz"),
        runs=10,
        takes="2 to 5 minutes",
        takes_small="half a minute",
    ),
    "xu-fig7": PaperFigure(
        title="Null-space cleaning beside Laplace noise at equal utility",
        paper="Xu et al. 2017, figure 7",
        function="flows.reproduce.xu:reproduce_xu_fig7",
        files=("scene.npz", "oes97.npz"),
        runs=10,
        takes="10 minutes",
        takes_small="a minute",
    ),
    "xu-own": PaperFigure(
        title="The figures of Xu et al. for every .arff of a folder of your own",
        paper="Xu et al. 2017, figures 4 and 6, other data",
        function="flows.reproduce.xu_folder:measure_folder",
        files=(),
        runs=10,
        takes="seconds to minutes a table",
        takes_small="a tenth of it",
    ),
    "hamm2017-raw": PaperFigure(
        title="Accuracy on raw records, before any filter",
        paper="Hamm, JMLR 2017, section 6.3",
        function="flows.reproduce.raw_records:reproduce_raw",
        files=("genki.npz", "har.npz"),
        runs=5,
        takes="half an hour",
        takes_small="6 minutes",
    ),
    "hamm-genki": PaperFigure(
        title="Filters on faces: expression released, gender confidential",
        paper="Hamm, JMLR 2017, figure 4",
        function="flows.reproduce.hamm:reproduce_genki",
        files=("genki.npz",),
        runs=4,
        takes="an hour or more",
        takes_small="half a minute",
        small={"small": True},
    ),
    "hamm-har": PaperFigure(
        title="Filters on motion: activity released, subject confidential",
        paper="Hamm, JMLR 2017, figure 6",
        function="flows.reproduce.hamm:reproduce_har",
        files=("har.npz",),
        runs=4,
        takes="hours",
        takes_small="one to two minutes",
        small={"small": True},
    ),
    "hamm-noisy": PaperFigure(
        title="Noisy filters: accuracy over the privacy loss",
        paper="Hamm 2017, Noisy Minimax Filters, figure 4 (JMLR, figures 7 and 8)",
        function="flows.reproduce.hamm_noisy:reproduce_noisy",
        files=("genki.npz", "har.npz"),
        runs=3,
        takes="an hour or two",
        takes_small="two to five minutes",
        small={"draws": 2, "widths": (20,), "har": False, "inverse": (0.0, 1e-3, 1e-2, 1e-1)},
    ),
    "sppm-census": PaperFigure(
        title="Sparse privacy mappings of census records: information, attackers, features",
        paper="Salamatian et al., SPPM, figures 2 (middle) and 3, table 1",
        function="flows.reproduce.sppm_census:reproduce_census",
        files=("adult.csv.gz",),
        runs=3,
        takes="a minute",
        takes_small="half a minute",
    ),
    "sppm-synthetic": PaperFigure(
        title="Sparse privacy mappings of synthetic symbols: pictures, steps, times, supports",
        paper="Salamatian et al., SPPM, figures 1, 2 (left), 5, 6 and 7",
        function="flows.reproduce.sppm_synthetic:reproduce_synthetic",
        files=(),
        runs=3,
        takes="3 minutes",
        takes_small="2 minutes",
    ),
    "sppm-movie": PaperFigure(
        title="Sparse privacy mappings of film ratings: information, attacker, supports",
        paper="Salamatian et al., SPPM, figures 2 (right), 4 and 7",
        function="flows.reproduce.sppm_movie:reproduce_movie",
        files=("ml-1m/users.dat", "ml-1m/movies.dat", "ml-1m/ratings.dat"),
        runs=1,
        takes="a minute",
        takes_small="half a minute",
        remedy="Get MovieLens 1M from GroupLens, whose licence forbids passing it on, and unpack "
        "it in the folder of the papers' data sets as ml-1m/.",
    ),
    "yi-school": PaperFigure(
        title="Regression of examination scores from masked records, beside other releases",
        paper="Yi et al. 2014, figures 1 and 2 (School)",
        function="flows.reproduce.yi:reproduce_school",
        files=("school.npz",),
        runs=10,
        takes="half an hour",
        takes_small="two minutes",
        small={"learners": ("ridge",), "n_records": 6000},
    ),
    "yi-figures": PaperFigure(
        title="Masked records beside random projection, noise at equal utility, coefficients alone",
        paper="Yi et al. 2014, figures 1 and 2 (School), pooled",
        function="flows.reproduce.yi:reproduce_figures",
        files=("school.npz",),
        runs=10,
        takes="some minutes",
        takes_small="a minute",
        small={"n_records": 6000},
        small_runs=2,
    ),
    "yi-synthetic": PaperFigure(
        title="Masked records lie in the column space of the noiseless ones",
        paper="Yi et al. 2014, tables 1 and 2",
        function="flows.reproduce.yi_synthetic:reproduce_synthetic",
        files=(),
        runs=10,
        takes="ten minutes",
        takes_small="a minute or two",
        small={"variances": (0.5,)},
    ),
}
"""Reproductions by name; a new one is a function in its paper's module and a row here."""


def run_reproduction(
    name: str,
    data: Path | str,
    runs: int | None = None,
    *,
    small: bool = False,
    say: Callable[[str], None] | None = None,
) -> Reproduction:
    """Do a paper's figure again; one that was interrupted continues.

    Parameters
    ----------
    name
        One of `FIGURES`.
    data
        Folder of the papers' data sets.
    runs
        Runs to average; the figure's own number when not given.
    small
        The size that ends within five minutes.
    say
        Takes lines of progress; with it, what is done is stored in the user's cache folder until
        all of it is.

    Raises
    ------
    OptionError
        If the name is unknown or `runs` is below 1.
    InputError
        If the folder or one of the files is missing.
    """
    if name not in FIGURES:
        close = difflib.get_close_matches(name, FIGURES, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise OptionError(
            f"There is no reproduction {name!r}.",
            remedy=f"{hint}Choose from: {', '.join(FIGURES)}.",
        )
    figure, folder = FIGURES[name], Path(data)
    if runs is not None and runs < 1:
        raise OptionError(f"runs is {runs}.", remedy="Use 1 or more.")
    missing = [file for file in figure.files if not (folder / file).is_file()]
    if missing:
        raise InputError(
            f"{', '.join(missing)} not found in {folder}.",
            remedy=figure.remedy,
            code="missing_data",
        )
    if runs is None:
        runs = figure.small_runs if small else figure.runs
    steps = Steps()
    if say is not None:
        size = "small" if small else "full"
        takes = figure.takes_small if small else figure.takes
        say(f"{name}: {runs} run{'s' * (runs > 1)}, {size} size; takes {takes} on two cores")
        steps = Steps(find_folder(f"{name}-{size}", folder, figure.files), say)
    started = time.perf_counter()
    with follow_steps(steps):
        found = figure.load()(folder, runs, **(figure.small if small else {}))
    return replace(
        found,
        name=name,
        title=figure.title,
        paper=figure.paper,
        seconds=time.perf_counter() - started,
    )
