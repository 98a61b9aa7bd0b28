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
from privpipe.pipeline.stages.check import check_stage
from privpipe.store.access.workspace import RunState, write_state
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

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


@pytest.mark.parametrize("advises", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_run__a_class_too_small_publishes_nothing(
    advises: bool, tmp_path: Path, serially: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the refusal tries what would pass, of which test_diagnosis asks more."""
    if not advises:
        monkeypatch.setattr(diagnosis, "TRIED", ())
    records = make_records(3000)
    records["other"] = (np.arange(3000) < 6).astype(np.int8)
    write_records(str(tmp_path / "records.zarr"), records)
    options = make_leaky_options(
        tmp_path,
        method={"name": "leace"},
        collection={"confidential": ["secret", "other"]},
        audit={"holdout": 0.5, "adversaries": ("least_squares",)},
    )
    with pytest.raises(GateError, match="'other' is unproven, it was not attacked: ") as caught:
        run_serially(options)
    assert caught.value.code == "unproven"
    assert not (tmp_path / "release.zarr").exists()


def test_run__no_held_out_records_publish_nothing(tmp_path: Path, serially: None) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(400))
    options = make_leaky_options(tmp_path, audit={"holdout": 0.0001}, gate={"enforce": False})
    with pytest.raises(OptionError, match=r"0\.0001, which of 400 training records is none"):
        run_serially(options)
    assert not (tmp_path / "release.zarr").exists()


def test_run__a_variable_named_like_markup_is_escaped_wherever_it_stands(
    tmp_path: Path, serially: None
) -> None:
    name, records = "<script>", make_records(600)
    records = {name if key == "secret" else key: values for key, values in records.items()}
    write_records(str(tmp_path / "records.zarr"), records)
    audit = {"holdout": 0.5, "adversaries": ("least_squares",)}
    run_serially(
        make_leaky_options(
            tmp_path,
            method={"name": "leace"},
            collection={"confidential": [name]},
            audit=audit,
            gate={"enforce": False},
        )
    )
    for page in ("report.html", "public.html", "audit.md"):
        text = (tmp_path / "release.report" / page).read_text()
        assert "script" in text
        assert not re.search(r"(?<!\\)<script", text)  # a backslash before it in Markdown


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
