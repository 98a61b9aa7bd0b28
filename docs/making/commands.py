"""The page of the commands, from the options that the command itself reads."""

from __future__ import annotations

from typing import Any

import typer

from privpipe.command.app import app

__all__ = ["list_commands", "write_commands"]


def list_commands() -> dict[str, Any]:
    """Commands by name."""
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def write_commands() -> str:
    """Every command with its arguments and options."""
    lines = [
        "# Commands",
        "",
        f"`privpipe COMMAND --help` prints the same. {app.info.epilog}",
        "",
        "Colours are off with `NO_COLOR` set and in pipes; `privpipe --install-completion` "
        "completes commands, options, methods, figures and error codes.",
        "",
    ]
    for name, command in list_commands().items():
        about_it = " ".join((command.help or "").split())
        lines += [f"## `privpipe {name}`", "", about_it, "", *_write_parameters(command), ""]
    return "\n".join(lines)


def _write_parameters(command: Any) -> list[str]:
    rows = []
    for item in command.params:
        if item.name == "help":
            continue
        is_argument = item.param_type_name == "argument"
        name = item.name.upper() if is_argument else ", ".join(item.opts)
        default = "required" if item.required else _write_default(item)
        about_it = " ".join((getattr(item, "help", "") or "").split()).replace("|", "\\|")
        rows.append(f"| `{name}` | {_write_type(item)} | {default} | {about_it} |")
    return ["| | type | default | meaning |", "|---|---|---|---|", *rows]


def _write_type(item: Any) -> str:
    """What an option takes."""
    if getattr(item, "is_flag", False):
        return "flag"
    kinds = {int: "whole number", float: "number"}
    return kinds.get(type(item.default), "text")


def _write_default(item: Any) -> str:
    if item.default in ("", None, False, []):
        return ""
    return f"`{item.default}`"
