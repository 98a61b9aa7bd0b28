"""The page of the configuration: every key with type, default and meaning, from its model."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from privpipe.command.init_command import SECTIONS
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.report.audit_text import ABOUT
from privpipe.sanitizers import METHODS

__all__ = ["list_keys", "tabulate_options", "write_configuration"]


def write_configuration() -> str:
    """All sections, and the keys of each."""
    lines = [
        "# Configuration",
        "",
        "One TOML file says what a run does; `privpipe init` writes a first one with every key "
        "and what it means, `privpipe schema` prints the JSON schema for editors. Any key is "
        "overridden by the environment: `PRIVPIPE_METHOD__UTILITY_BUDGET=0.02`. A misspelt key, "
        "and a text where a number or a flag belongs, is refused with file, line and column and "
        "the closest name.",
        "",
    ]
    schema = RunOptions.model_json_schema()
    for section in SECTIONS:
        lines += [f"## `[{section}]`", ""]
        if section == "method":
            lines += ["`name` chooses the method; its other keys are:", ""]
            for name in METHODS:
                lines += [f'### `name = "{name}"`', "", *tabulate_options(name), ""]
            continue
        about = _resolve(schema["properties"][section], schema)
        lines += [_read_title(about), "", *_tabulate(about, schema), ""]
    lines += [
        "## `[about]`",
        "",
        "What only the controller knows; the officer's page prints it.",
        "",
    ]
    lines += ["| key | meaning |", "|---|---|", *(f"| `{k}` | {v} |" for k, v in ABOUT.items()), ""]
    return "\n".join(lines)


def list_keys() -> dict[str, list[str]]:
    """Keys by section; of methods, by ``method.NAME``."""
    schema = RunOptions.model_json_schema()
    found = {
        section: list(_resolve(schema["properties"][section], schema)["properties"])
        for section in SECTIONS
        if section != "method"
    }
    for name, method in METHODS.items():
        found[f"method.{name}"] = list(TypeAdapter(method.options).json_schema()["properties"])
    return found


def tabulate_options(method: str) -> list[str]:
    """The keys of a method."""
    schema = TypeAdapter(METHODS[method].options).json_schema()
    schema["properties"].pop("name", None)
    if not schema["properties"]:
        return ["It has no other keys."]
    return _tabulate(schema, schema)


def _tabulate(about: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    required = about.get("required", ())
    for key, item in about["properties"].items():
        default = "**required**" if key in required else f"`{_write(item.get('default'))}`"
        if "default" not in item and key not in required:
            default = ""
        about_it = " ".join(str(item.get("description", "")).split()).replace("|", "\\|")
        rows.append(f"| `{key}` | {_write_type(item, schema)} | {default} | {about_it} |")
    return rows


def _write_type(item: dict[str, Any], schema: dict[str, Any]) -> str:
    item = _resolve(item, schema)
    if "anyOf" in item:
        return " or ".join(_write_type(one, schema) for one in item["anyOf"])
    if "enum" in item:
        return ", ".join(f"`{one}`" for one in item["enum"])
    if "const" in item:
        return f"`{item['const']}`"
    kind = {"null": "not set", "boolean": "true or false"}.get(item.get("type"), item.get("type"))
    if kind == "array":
        inner = item.get("items")
        return f"list of {_write_type(inner, schema)}" if inner else "list"
    limits = [
        f"{sign} {item[name]}"
        for name, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", "above"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "below"),
        )
        if name in item
    ]
    return " ".join([str(kind or "any"), *limits])


def _write(value: Any) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')


def _resolve(item: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference of the schema means."""
    if "$ref" in item:
        return dict(schema["$defs"][item["$ref"].rpartition("/")[2]])
    kinds = [one for one in item.get("anyOf", ()) if "$ref" in one]
    return _resolve(kinds[0], schema) if kinds else item


def _read_title(about: dict[str, Any]) -> str:
    text = str(about.get("description", "")).partition("\n\n")[0]
    about_it = " ".join(text.split()).replace("``", "`").partition(": ")[2]
    return about_it[:1].upper() + about_it[1:]
