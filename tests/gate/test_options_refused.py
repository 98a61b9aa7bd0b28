"""Bad input: a clear error that names the thing and the way out, and nothing published."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.errors import GateError, InputError, OptionError, PrivpipeError
from privpipe.pipeline.runs.approval import approve_release, read_approval, write_case
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages import diagnosis
from privpipe.pipeline.stages.check import check_stage, check_vouched
from privpipe.store.access.workspace import RunState, write_state
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially, serial_flows

BAD = {
    "gate.confidential_advantage_max": ("-0.1", "greater than or equal to 0"),
    "gate.exposed_max": ("1.5", "less than or equal to 1"),
    "gate.utility_loss_max": ("2", "less than or equal to 1"),
    "gate.must_find": ("0", "greater than 0"),
    "audit.level": ("1.0", "less than 1"),
    "audit.earlier": ('["a.zarr", "a.zarr"]', "name each once"),
    "audit.adversaries": ('["logistic", "oracle"]', "no such adversary"),
}


@pytest.mark.parametrize("key", BAD)
def test_options__bad_values_are_named_with_their_place(tmp_path: Path, key: str) -> None:
    section, _, name = key.partition(".")
    value, says = BAD[key]
    file = tmp_path / "bad.toml"
    file.write_text(
        '[collection]\npath = "r"\nconfidential = ["s"]\n[method]\nname = "leace"\n'
        f'[release]\npath = "o"\n[{section}]\n{name} = {value}\n'
    )
    with pytest.raises(OptionError, match=says) as caught:
        read_options(str(file))
    assert f"[{section}] {name}" in str(caught.value)


def check(folder: Path, records: dict[str, np.ndarray], **changes: Any) -> RunOptions:
    write_records(str(folder / "records.zarr"), records)
    options = make_leaky_options(folder, **changes)
    check_stage(options)
    return options


def test_check__vouches_for_nothing_that_is_not_shown(tmp_path: Path) -> None:
    """A misspelled name was passed over, and the run refused for what it meant, hours later."""
    with pytest.raises(OptionError, match="vouched has no 'ordre', did you mean 'order'") as caught:
        check(tmp_path, make_records(200), audit={"vouched": ("order", "ordre")})
    assert "order, partitions, withheld, earlier" in str(caught.value.remedy)
    known = ("order", "partitions", "withheld", "earlier", "club")
    with pytest.raises(OptionError, match="has no 'club'"):
        check_vouched(make_leaky_options(tmp_path), known)
    check_vouched(make_leaky_options(tmp_path, release={"include": ["club"]}), known)


def test_check__one_class_is_refused(tmp_path: Path) -> None:
    records = make_records(200)
    records["secret"][:] = 0
    with pytest.raises(InputError, match="one and the same value"):
        check(tmp_path, records)


def test_check__too_few_held_out_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="The gate cannot be passed: about"):
        check(tmp_path, make_records(300))


REMOVED = {
    "release.anew": "true",
    "cluster.performance_report": '"page.html"',
    "audit.seed": "1",
    "audit.decides": '["accuracy"]',
    "audit.unreachable": '"report"',
    "audit.coefficients": "true",
    "gate.linkage_max": "0.1",
    "gate.require": '["linkage"]',
    "gate.previous": '"earlier.zarr"',
}


@pytest.mark.parametrize("key", REMOVED)
def test_options__a_key_of_older_versions_says_what_to_do_instead(tmp_path: Path, key: str) -> None:
    section, _, name = key.partition(".")
    sections = {
        "collection": ['path = "r"'],
        "method": ['name = "leace"'],
        "release": ['path = "o"'],
    }
    sections.setdefault(section, []).append(f"{name} = {REMOVED[key]}")
    file = tmp_path / "old.toml"
    file.write_text(
        "".join(f"[{name}]\n" + "\n".join(keys) + "\n" for name, keys in sections.items())
    )
    with pytest.raises(OptionError, match=f"{name} is no option any more: .+. Delete the line"):
        read_options(str(file))


MARKUP = "<script>"


def refuse_small_class(folder: Path) -> GateError:
    """Run with six records of a class; the other confidential variable is named like markup."""
    records = make_records(3000)
    records[MARKUP] = records.pop("secret")
    records["other"] = (np.arange(3000) < 6).astype(np.int8)
    write_records(str(folder / "records.zarr"), records)
    options = make_leaky_options(
        folder,
        method={"name": "leace"},
        collection={"confidential": [MARKUP, "other"]},
        audit={"holdout": 0.5, "adversaries": ("least_squares",)},
    )
    with serial_flows(), pytest.raises(GateError) as caught:
        run_serially(options)
    return caught.value


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, GateError]:
    """Such a run that tries nothing else: what would pass is asked by test_diagnosis."""
    folder = tmp_path_factory.mktemp("refused")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnosis, "TRIED", ())
        return folder, refuse_small_class(folder)


def check_refused(folder: Path, error: GateError) -> None:
    assert "'other' is unproven, it was not attacked: " in str(error)
    assert error.code == "unproven"
    assert not (folder / "release.zarr").exists()


def test_run__a_class_too_small_publishes_nothing(refused: tuple[Path, GateError]) -> None:
    check_refused(*refused)


@pytest.mark.slow
def test_run__a_class_too_small_publishes_nothing_though_others_are_tried(tmp_path: Path) -> None:
    check_refused(tmp_path, refuse_small_class(tmp_path))


def check_pages(folder: Path) -> None:
    for page in ("report.html", "public.html", "audit.md"):
        text = (folder / "release.report" / page).read_text()
        assert "script" in text
        assert not re.search(r"(?<!\\)<script", text)  # a backslash before it in Markdown


def test_refusal__a_variable_named_like_markup_is_escaped_wherever_it_stands(
    refused: tuple[Path, GateError],
) -> None:
    check_pages(refused[0])


def test_run__no_held_out_records_publish_nothing(tmp_path: Path, serially: None) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(400))
    options = make_leaky_options(tmp_path, audit={"holdout": 0.0001}, gate={"enforce": False})
    with pytest.raises(OptionError, match=r"0\.0001, which of 400 training records is none"):
        run_serially(options)
    assert not (tmp_path / "release.zarr").exists()


@pytest.mark.slow
def test_run__a_variable_named_like_markup_is_escaped_wherever_it_stands(
    tmp_path: Path, serially: None
) -> None:
    records = make_records(600)
    records[MARKUP] = records.pop("secret")
    write_records(str(tmp_path / "records.zarr"), records)
    audit = {"holdout": 0.5, "adversaries": ("least_squares",)}
    run_serially(
        make_leaky_options(
            tmp_path,
            method={"name": "leace"},
            collection={"confidential": [MARKUP]},
            audit=audit,
            gate={"enforce": False},
        )
    )
    check_pages(tmp_path)


def test_approve__for_another_digest_or_without_a_reason_is_refused(tmp_path: Path) -> None:
    release = str(tmp_path / "release.zarr")
    with pytest.raises(OptionError, match="name and a reason"):
        approve_release(release, "A", " ")
    write_state(release, RunState("0123abcd", "", "", "", "", ""))
    write_case(release, "one", "It leaks.")
    approve_release(release, "A", "Seen.")
    assert read_approval(release, "one") is not None
    with pytest.raises(GateError, match="not what the gate refuses now"):
        read_approval(release, "two")


def test_errors__are_all_ours() -> None:
    assert {GateError.exit_code, OptionError.exit_code, InputError.exit_code} == {6, 2, 3}
    assert issubclass(GateError, PrivpipeError)
