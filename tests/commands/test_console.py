"""What is said on a terminal: names of users are text, never markup, emoji or control codes."""

from __future__ import annotations

import io
import json

import pytest

from privpipe.cluster.executors.executor import Event
from privpipe.errors import InputError
from privpipe.pipeline.runs.watch import Watch
from privpipe.report.console import PlainConsole, say, say_raw, tabulate
from privpipe.store.access.location import shown

NASTY = "a[final] [/b] :smile: \x1b[31mred\x1b[0m \x07\x9b2J \u202egnp"


@pytest.mark.parametrize("what", [NASTY, "[/b]", "[link=http://x]y[/link]", "back\\[slash]"])
def test_say__shows_text_as_it_is(capsys, what):
    say(what)
    say(tabulate([{what: what}], title=what))
    say_raw(what)
    told = capsys.readouterr().out
    for harmless in ("\x1b", "\x07", "\x9b", "\u202e"):
        assert harmless not in told
    assert told.count(what.encode("unicode_escape").decode().replace("\\\\", "\\")) >= 2


def test_watch__shows_names_as_they_are():
    told = io.StringIO()
    watch = Watch(PlainConsole(file=told))
    with watch.stage("check", NASTY):
        watch.say(NASTY)
    watch.hear(Event(NASTY, "stalls", 3.0, "seconds", (("workers", 2),)))
    assert told.getvalue().count("a[final] [/b] :smile: \\x1b[31mred") == 2
    assert "\x1b" not in told.getvalue()


def test_errors_and_places__hold_no_control_characters():
    error = InputError(f"The column {NASTY} is wrong.", remedy=f"Rename {NASTY}.")
    for text in (str(error), error.message, error.remedy, shown(NASTY), shown("a\nb")):
        assert text.isprintable()
    assert "a[final] [/b]" in error.message


def test_commands__say_nasty_paths_and_names_as_they_are(tmp_path, command):
    folder = tmp_path / "d[/b] [red]\x1b[31m"
    folder.mkdir(parents=True)
    source, dest = folder / "s:smile:.csv", folder / "r[final].zarr"
    names = '"a[/b]","c\x1b]0;title\x07"'
    source.write_text(names + "\n" + "\n".join(f"{i},{i % 2}" for i in range(20)) + "\n")
    code, out, err = command("ingest", source, dest, "--labels", "c\x1b]0;title\x07")
    assert (code, err) == (0, "")
    for arguments in (("inspect", dest), ("status", dest), ("ingest", source, dest)):
        code, more, err = command(*arguments)
        assert code == (0 if arguments[0] == "inspect" else 4)
        out += more + err
    code, more, err = command("inspect", f"{folder}/no[/x].zarr", "[/oops]\x1b[2J")
    assert code == 2
    out += more + err
    assert "\x1b" not in out
    assert "\x07" not in out
    assert out.count("d[/b] [red]\\x1b[31m/r[final].zarr") >= 3
    assert "c\\x1b]0;title\\x07" in out
    code, text, _ = command("inspect", dest, "--json")
    assert json.loads(text)["variables"][0]["name"] == "c\x1b]0;title\x07"


def test_check__of_a_huge_budget_is_short(command, configure):
    code, out, _ = command("check", configure(1e250))
    assert code == 0
    assert max(map(len, out.splitlines())) < 300
    assert "times the variance" in out
