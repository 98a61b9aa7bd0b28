"""The officer's sheet: 18 fields, who filled each, nothing claimed that was not measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.report_writing import write_pages
from privpipe.report.audit_text import ABOUT
from privpipe.report.officer_page import NOT_COVERED, YOURS, describe_sheet, render_officer_page
from tests.report.test_page import read


@pytest.fixture
def findings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("audit.json").read_text())
    return found


def entries_of(sheet: dict[str, Any], number: int) -> dict[str, str]:
    return {one["name"]: one["value"] for one in sheet["fields"][number - 1]["entries"]}


def test_sheet__has_eighteen_fields_of_which_the_run_fills_nine_in_ten(
    findings: dict[str, Any],
) -> None:
    sheet = describe_sheet(findings)
    assert [one["number"] for one in sheet["fields"]] == list(range(1, 19))
    assert sheet["filled_by_run"] >= 0.9
    assert sheet["missing"] == list(ABOUT)
    everything = describe_sheet(findings | {"declared": dict.fromkeys(ABOUT, "x")})
    said = [entry for one in everything["fields"] for entry in one["entries"]]
    assert {entry["by"] for entry in said} == {"run", "controller"}
    assert everything["missing"] == []


def test_sheet__says_the_figures_of_the_audit_and_marks_the_rest(findings: dict[str, Any]) -> None:
    sheet = describe_sheet(findings | {"declared": {"controller": "<b>The house"}})
    assert entries_of(sheet, 1)["Controller"] == "<b>The house"
    assert entries_of(sheet, 1)["Purpose"].startswith(YOURS)
    assert "17,970" in entries_of(sheet, 2)["Records"]
    assert "0.15" in entries_of(sheet, 11)["By variable"]
    assert "digit=6" in entries_of(sheet, 11)["Worst group"]
    # A bound on the utility is no promise of privacy.
    assert entries_of(sheet, 6)["In words"].startswith("none about privacy")
    html = render_officer_page(findings | {"declared": {"controller": "<b>The house"}})
    read(html)
    assert "&lt;b&gt;The house" in html


def test_sheet__says_what_the_account_holds_and_what_adversaries_took(
    findings: dict[str, Any],
) -> None:
    sheet = describe_sheet(findings)
    assert "promises no epsilon" in entries_of(sheet, 8)["Account"]
    rows = findings["adversaries"]["table"]
    spent = {(one["target"], one["source"], one["adversary"]): one["seconds"] for one in rows}
    said = f"{len(spent)} attacks took {sum(spent.values()):.3g} seconds"
    assert said in entries_of(sheet, 12)["Knowledge, cost, power"]
    account = {"epsilon": 2.4412, "delta": 2**-20, "limit": 3.0}
    said = entries_of(describe_sheet(findings | {"account": account}), 8)["Account"]
    assert "at most epsilon 2.45 at delta 9.54E-7; the limit is epsilon 3" in said
    free = {"epsilon": 2.0, "delta": 0.0, "limit": None}
    said = entries_of(describe_sheet(findings | {"account": free}), 8)["Account"]
    assert said.endswith("at most epsilon 2; no limit is set")


def test_sheet__of_what_was_not_measured_says_so(findings: dict[str, Any]) -> None:
    for key in ("attacks", "utility", "privacy", "release", "gate"):
        findings.pop(key)
    findings["adversaries"]["table"] = []
    sheet = describe_sheet(findings)
    for number in (9, 14):
        assert set(entries_of(sheet, number).values()) == {NOT_COVERED}
    assert "not measured" in entries_of(sheet, 10)["Linkage"]


def test_sheet__is_the_same_as_page_json_and_yaml(findings: dict[str, Any], tmp_path: Path) -> None:
    write_pages(str(tmp_path), findings)
    sheet = json.loads((tmp_path / "officer.json").read_text())
    assert sheet == yaml.safe_load((tmp_path / "officer.yaml").read_text())
    assert sheet == json.loads(json.dumps(describe_sheet(findings)))
    page = (tmp_path / "officer.html").read_text()
    for one in sheet["fields"]:
        assert one["title"] in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('controler = "x"', "controler is not known, did you mean 'controller'?"),
        (f'purpose = "{"x" * 1001}"', "more than 1000 letters"),
        ("purpose = 3", r"\[about\] purpose"),
    ],
)
def test_about__refuses_what_is_no_entry(tmp_path: Path, line: str, said: str) -> None:
    config = tmp_path / "run.toml"
    base = '[collection]\npath = "c"\n[method]\nname = "leace"\n[release]\npath = "r"\n[about]\n'
    config.write_text(base + 'controller = "The house"\n')
    options = read_options(str(config))
    assert options.about == {"controller": "The house"}
    plain = read_options(str(_write(tmp_path / "plain.toml", base)))
    assert plain.digest() == options.digest()  # what is declared resumes the run
    with pytest.raises(OptionError, match=said):
        read_options(str(_write(config, base + line)))


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
