"""What README says of commands, codes, names and files is what there is, in a few screens."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

import privpipe
from privpipe.command.app import app
from privpipe.command.demo_command import CONFIGURATION
from privpipe.command.error_catalog import EXIT_CODES
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.gate import list_weaker_limits
from privpipe.report.audit_text import name_verdict, say_weaker
from privpipe.sanitizers import METHODS
from privpipe.store.sources.formats import FORMATS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text()
PLAIN = " ".join(TEXT.split())

MOST_LINES = 150
"""Of README: more is a page of the site."""


def list_commands() -> dict[str, object]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_readme__is_short_and_begins_with_the_idea() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES
    assert TEXT.index("digits.png") < TEXT.index("make demo") < TEXT.index("## What do you want")
    assert len(TEXT[: TEXT.index("digits.png")].splitlines()) < 10


def test_readme__names_in_its_choice_methods_that_there_are() -> None:
    rows = TEXT.partition("| you want to protect |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z_]+)`", rows))
    assert len(named) > 6
    assert named <= set(METHODS)


def test_readme__shows_commands_and_options_that_there_are() -> None:
    commands = list_commands()
    [shown] = re.findall(r"```\n(\. \.venv.*?)```", TEXT, re.DOTALL)
    lines = re.findall(r"(?m)^privpipe ([a-z-]+)(.*?)(?:#.*)?$", shown)
    assert [name for name, _ in lines] == ["ingest", "init", "check", "run", "open"]
    for name, rest in lines:
        known = {option for item in commands[name].params for option in item.opts}  # type: ignore[attr-defined]
        assert set(re.findall(r"--[a-z-]+", rest)) <= known, name
    assert set(re.findall(r"privpipe ([a-z][a-z-]+)", TEXT)) <= set(commands)
    assert "Every command has `--help` and takes `--json`" in PLAIN
    for name, command in commands.items():
        assert any("--json" in item.opts for item in command.params), name  # type: ignore[attr-defined]


def test_readme__names_targets_of_make_and_files_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.MULTILINE)
    assert {"demo", "test", "docs", "dist"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for place in re.findall(r"\]\(([^)]+)\)", TEXT):
        assert (ROOT / place).is_file(), place


def test_readme__names_the_exit_codes_as_help_does() -> None:
    [codes] = re.findall(r"Exit codes: (.*?interrupted)\.", PLAIN)
    assert codes in str(app.info.epilog)
    assert {int(code) for code in re.findall(r"\d+", codes)} == set(EXIT_CODES)


def test_readme__python_works_and_prints_a_guarantee(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(programs) == 2
    x = np.random.default_rng(0).normal(size=(200, 4))
    there = {"x": x, "y": x[:, 0] - x[:, 1], "secret": np.where(x[:, 2] > 0, "f", "m")}
    for program in programs:
        exec(program, there)
    assert "utility_bound" in capsys.readouterr().out
    left = there["search"].cv_results_["mean_test_privacy"]
    assert left[0] < left[2] <= 0
    # The second screen.
    assert 40 < TEXT[: TEXT.index("GridSearchCV")].count("\n") < 100
    for name in re.findall(r"privpipe\.([a-zA-Z_]+)\(", TEXT):
        assert hasattr(privpipe, name)


def test_readme__lists_the_methods_as_their_rows_do() -> None:
    head = "| `[method] name` | promise | source |\n|---|---|---|\n"
    rows = [f"| `{one.name}` | {one.promise} | {one.source} |" for one in METHODS.values()]
    assert TEXT.partition(head)[2].partition("\n\n")[0].splitlines() == rows


def test_readme__names_every_format() -> None:
    for row in FORMATS:
        assert any(ending in TEXT or ending.title().strip(".") in TEXT for ending in row.endings)


CLAIMS = {
    "Sanitises very large record": "papers/test_xu2017.py flows/test_pipeline.py::"
    "test_run_pipeline__publishes_a_release_that_keeps_its_promise",
    "Above, digits as": "flows/test_demo_scans.py",
    "A form reader": "flows/test_demo_scans.py",
    "Which other digit": "test_readme.py::"
    "test_readme__the_picture_says_what_the_page_of_a_demo_says",
    "`privpipe check my.toml --cost-of": "commands/test_pilot.py::"
    "test_check__says_what_records_would_cost",
    "[Which method?]": "test_readme.py::"
    "test_readme__names_targets_of_make_and_files_that_there_are",
    "In one table:": "test_readme.py::test_readme__names_in_its_choice_methods_that_there_are",
    "A table that another": "attacks/test_unaligned_release.py",
    "`privpipe audit RAW": "attacks/test_unaligned_release.py::"
    "test_audit__of_a_table_of_another_tool_writes_a_report_and_closes",
    "It attacks its": "gate/test_gate.py",
    "Training and cleaning a billion": "bench/bench_demo.py::run",
    "The demo's report begins": "report/test_first_screen.py",
    "One model cleans": "operations/test_lines.py",
    "A part that carries": "operations/test_judged_parts.py",
    "Readers see one": "operations/test_generations.py operations/test_drift.py",
    "How little else": "attacks/adversaries/test_table.py",
    "A stronger adversary": "attacks/test_power.py",
    "[CONTRIBUTING.md]": "flows/test_contributing.py",
    "[CITATION.cff]": "test_readme.py",
    "It learns a sanitiser": "gate/test_gate.py::"
    "test_gate__keeps_a_leak_back_with_a_sentence_and_goes_on_with_another_limit",
    "The demo prints": "test_setup.py::test_wheel__works_by_pip_alone_beside_a_folder_flows",
    "Without `--labels`": "flows/test_data_commands.py::"
    "test_ingest__looks_first_and_takes_the_reviewed_schema",
    "Sources:": "test_readme.py::test_readme__names_every_format "
    "store/sources/reading/test_data_frames.py::test_ingest__every_format_gives_the_frame",
    "Every command has": "test_readme.py::test_readme__shows_commands_and_options_that_there_are",
    "`privpipe explain CODE`": "commands/test_welcome.py::test_explain__says_when_and_what_to_do",
    "Scheduled runs": "operations/test_runbook.py::test_first_page__ends_with_a_scheduled_release "
    "operations/test_refused_places.py::test_doctor__judges_what_a_worker_tells",
    "`{logical_time}`": "operations/test_refused_places.py::"
    "test_logical_time__is_one_moment_however_it_is_written",
    "With `[release] incremental": "operations/test_lines.py::"
    "test_line__another_option_begins_a_new_one_of_all_partitions "
    "operations/test_generations.py::test_publish__killed_at_any_step_shows_one_whole_generation "
    "operations/test_drift.py::test_drift__beyond_the_limit_passes_at_most_at_its_level",
    "`privpipe.sklearn` has": "test_sklearn.py::"
    "test_transformers__are_those_of_all_methods_that_fit_a_matrix",
    "In Python": "test_readme.py::test_readme__python_works_and_prints_a_guarantee "
    "test_bare_install.py::test_library__fits_applies_and_opens_what_a_cluster_released",
    "`leace`, `privacy_lds`": "test_readme.py::test_readme__lists_the_methods_as_their_rows_do",
    "`privpipe compare`": "gate/test_compare.py::"
    "test_compare__ranks_methods_and_goes_on_where_it_was_stopped",
    "A bound on": "attacks/adversaries/test_table.py",
    "Whatever the prediction": "papers/test_attacks_genki.py",
    "Only some methods": "sanitizers/test_contract_rows.py::test_row__has_a_guarantee_that_is_true",
    "`make docs`": "docs/test_reference.py "
    "test_readme.py::test_readme__names_targets_of_make_and_files_that_there_are",
    "`make dist`": "dist_contents.py "
    "test_readme.py::test_readme__names_targets_of_make_and_files_that_there_are",
    "What each room": "test_house.py test_readme.py::"
    "test_readme__names_targets_of_make_and_files_that_there_are",
    "Apache-2.0": "test_readme.py::test_readme__names_the_licence_that_there_is",
}
"""How each sentence begins, and where it is checked, in the folder of the tests."""


def list_sentences(text: str) -> list[str]:
    """Prose without programs, tables, headings and pictures."""
    prose = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    prose = re.sub(r"(?m)^(\||#|!\[).*$", "\n", prose)
    paragraphs = [" ".join(one.split()) for one in re.split(r"\n\s*\n", prose)]
    found = [one for each in paragraphs for one in re.split(r"(?<=[.:]) (?=[A-Z`\[])", each)]
    return [one for one in found if one]


def find_unchecked(text: str) -> list[str]:
    """Sentences that no test, or more than one entry, answers for."""
    sentences = list_sentences(text)
    answers = [[one for one in CLAIMS if each.startswith(one)] for each in sentences]
    return [each for each, found in zip(sentences, answers, strict=True) if len(found) != 1]


def test_readme__every_sentence_has_a_test_that_there_is() -> None:
    assert find_unchecked(TEXT) == []
    begun = list_sentences(TEXT)
    for start, places in CLAIMS.items():
        assert any(one.startswith(start) for one in begun), f"{start!r} is no sentence any more"
        for place in places.split():
            path, _, name = place.partition("::")
            source = (ROOT / "tests" / path).read_text()
            assert not name or re.search(rf"^def {name}\b", source, re.MULTILINE), place


def test_readme__a_sentence_without_a_test_is_found() -> None:
    assert find_unchecked(f"{TEXT}\nIt is also the fastest.\n") == ["It is also the fastest."]


def test_readme__names_the_licence_that_there_is() -> None:
    assert PLAIN.endswith("Apache-2.0.")
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_readme__the_picture_says_what_the_page_of_a_demo_says() -> None:
    """Its words stand in the picture's file: another word, or limit of the demo, and it is stale.

    Take it again from the page of a `privpipe demo`, 1180 pixels wide at a scale of 0.7. What the
    strongest adversaries name of a hundred digits, as that demo printed it, is in the file as well.
    """
    given = tomllib.loads(CONFIGURATION.format(folder="demo", workers=1))
    options = RunOptions(**given)
    gate = {"weaker": list_weaker_limits(options)}
    name = name_verdict({"adversaries": {"verdict": "safe"}, "gate": gate})
    with Image.open(ROOT / "docs" / "_static" / "report.png") as picture:
        assert picture.info["Description"] == f"{name}.{say_weaker(gate)}"
        strongest = re.fullmatch(r"raw (\d+), released (\d+)", picture.info["Strongest"])
        assert picture.width >= 800
    assert strongest is not None
    said = " ".join((ROOT / "README.md").read_text().split())
    raw, released = strongest.groups()
    assert f"the strongest attack names {raw} in 100, of released ones {released}." in said
