"""The first configuration: complete once the marked keys are filled in, for every method."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from privpipe.command.init_command import SECTIONS, write_template
from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.sanitizers import METHODS

SCHEMA = CollectionSchema(
    100,
    5,
    "float32",
    50,
    (Variable("smoker", "int8", ("sometimes", "never")), Variable("age", "f8")),
)


def make_text(method="null_space", **named):
    given = {("collection", "path"): "in.zarr", ("release", "path"): "out.zarr"}
    given |= {("collection", role): names for role, names in named.items()}
    return write_template(SCHEMA, given | {("method", "name"): method})


@pytest.mark.parametrize("method", METHODS)
def test_write_template__only_what_is_marked_is_missing(tmp_path, method):
    text = make_text(method, desired=["smoker"], confidential=["age"])
    if re.search(r"(?m)^\w+ = \[?FILL IN", text):
        with pytest.raises(tomllib.TOMLDecodeError):
            tomllib.loads(text)
    installed = tmp_path / "filters.py"
    installed.write_text("class Mine: ...")
    text = text.replace("filter = FILL IN", f'filter = "Mine"\nmodule = "{installed}"')
    # What no 1 can be: a chance, and what the comment above the key shows by an example.
    text = text.replace("delta = FILL IN", "delta = 1e-6")
    if example := re.search(r"\{age = .*?\}", text.replace("\n# ", " ")):
        text = text.replace("bound = FILL IN", f"bound = {example[0]}")
    filled = re.sub(r"(?m)^(\w+) = FILL IN$", r"\1 = 1", text)
    (tmp_path / "c.toml").write_text(filled.replace("[FILL IN]", '["smoker"]'))
    options = read_options(str(tmp_path / "c.toml"))
    assert options.method.name == method
    assert options.collection.path == "in.zarr"
    assert options.collection.desired == ("smoker",)
    assert options.collection.confidential == ("age",)
    assert options.release.path == "out.zarr"


def test_write_template__comments_show_the_defaults(tmp_path):
    text = make_text(desired=["smoker"])
    shown = re.sub(r"(?m)^# (\w+ = (?!\"\"  #|FILL).*)$", r"\1", text).replace("FILL IN", "0.5")
    (tmp_path / "shown.toml").write_text(shown)
    plain = re.sub(r"(?m)^(\w+) = FILL IN$", r"\1 = 0.5", text)
    (tmp_path / "plain.toml").write_text(plain)
    assert read_options(str(tmp_path / "shown.toml")) == read_options(str(tmp_path / "plain.toml"))
    assert shown != plain


def test_write_template__names_every_key_and_no_category():
    text = make_text()
    for section in SECTIONS:
        assert f"[{section}]" in text
    for name in ("utility_budget", "holdout", "memory_limit", "include"):
        assert re.search(rf"(?m)^(# )?{name} = ", text)
    assert "smoker (2 categories), age (numeric)" in text
    assert "sometimes" not in text
    assert "never" not in re.sub("never seen by the fit|unknown never passes", "", text)


def test_write_template__unknown_names_are_told():
    with pytest.raises(OptionError, match="no method 'nullspace', did you mean 'null_space'"):
        make_text("nullspace")


def test_run_options__have_a_json_schema_with_a_description_of_every_key():
    schema = RunOptions.model_json_schema()
    json.dumps(schema)
    for name in ("CollectionSection", "ReleaseSection", "AuditSection", "ClusterSection"):
        assert all("description" in item for item in schema["$defs"][name]["properties"].values())
    assert set(schema["required"]) >= {"collection", "method", "release"}
