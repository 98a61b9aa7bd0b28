"""The subcommands and their options; what they do is in the modules they load when called."""

import functools
import inspect as signatures
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from typer import Argument, Exit, Option, Typer
from typer.core import TyperGroup

from privpipe.store.sources.formats import describe_formats

HELP = tomllib.loads(Path(__file__).with_name("help.toml").read_text("utf-8"))
"""Texts of a line or more, by command and option."""

START, RUN, LOOK, OTHER = "Start", "Run", "Look and share", "More"
"""Headings of the help in their order; commands that name none come last."""

FIRST = ("demo", "ingest", "init", "check", "run")
"""Commands in the order in which they are needed; others as they are written."""

# Refused by name, not unknown: scripts of version 0.1 learn where their command is.
MOVED = HELP["moved"]
"""Commands of version 0.1 that `compare` has taken in; the names go with version 0.3."""


class HeadedCommands(TyperGroup):
    """Commands under the panels that they name, each with its whole first sentence.

    What is usual is one list, whose sentences end in dots where the terminal does.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; one that has moved says where to."""
        if cmd_name in MOVED:
            from privpipe.errors import OptionError

            message = f"`privpipe {cmd_name}` has become part of `privpipe compare`."
            raise OptionError(message, remedy=MOVED[cmd_name], code="moved")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a heading per panel; sentences fold to the width of the terminal."""
        panels: dict[str, list[tuple[str, str]]] = {}
        widest = max(len(name) for name in self.commands)
        # A stable sort: those that are not in FIRST all have its length as index.
        for name in sorted(self.commands, key=lambda one: (*FIRST, one).index(one)):
            command = self.commands[name]
            panel = getattr(command, "rich_help_panel", None)
            # The first sentence alone: docstrings fold at 100 columns, terminals
            # elsewhere.
            sentence = " ".join((command.help or "").strip().partition("\n\n")[0].split())
            heading = panel if panel in (START, RUN, LOOK) else OTHER
            panels.setdefault(heading, []).append((name.ljust(widest), sentence))
        for heading in (START, RUN, LOOK, OTHER):
            with formatter.section(heading):
                formatter.write_dl(panels[heading])


app = Typer(
    name="privpipe",
    cls=HeadedCommands,
    help=HELP["privpipe"],
    no_args_is_help=True,
    add_completion=True,
    # Typer's own tracebacks print the values of local variables.
    pretty_exceptions_enable=False,
    # Names of files in a message are no markup.
    rich_markup_mode=None,
    epilog=HELP["epilog"],
)

TARGETS: dict[str, str] = {}
"""The function of every command, as ``module:function`` below `privpipe.command`."""

_JSON = signatures.Parameter(
    "as_json",
    signatures.Parameter.KEYWORD_ONLY,
    annotation=bool,
    default=Option(False, "--json", help="Print one JSON document on stdout."),
)
"""An option of all commands; `main` acts upon it."""


def _calls(
    target: str, panel: str | None = None, *, name: str | None = None, **fixed: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command by its options and its help, whose work is in a function of another module.

    Parameters
    ----------
    target
        ``module:function``, loaded when the command is called: ``--help`` and completion, which
        need neither, would take seconds with all of them.
    panel
        Heading of the help.
    name
        Of the command, where it is not that of what is decorated.
    fixed
        Arguments of the function beside the options.
    """

    def register(described: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(described)
        def call(*, as_json: bool = False, **given: Any) -> Any:
            module, _, function = target.partition(":")
            return getattr(import_module(f"privpipe.command.{module}"), function)(**given, **fixed)

        # What typer reads: its options are those of `described`, and one more.
        options = signatures.signature(described)
        parameters = [*options.parameters.values(), _JSON]
        vars(call)["__signature__"] = options.replace(parameters=parameters)
        call.__annotations__ = {**described.__annotations__, "as_json": bool}
        TARGETS[name or described.__name__] = target
        app.command(name, rich_help_panel=panel)(call)
        return described

    return register


def _say_version(shown: bool) -> None:
    """Print the version and end."""
    if shown:
        # Here, as in all commands: what a command does not need is not loaded for --help.
        from privpipe import __version__
        from privpipe.report.console import say

        say(f"privpipe {__version__}")
        raise Exit


@app.callback()
def _all_commands(
    version: bool = Option(
        False, "--version", help="Print the version.", callback=_say_version, is_eager=True
    ),
) -> None:
    """Options of the command itself; its help is the application's."""


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _names(help: str) -> Any:
    """An option that takes names by comma."""
    return Option("", parser=_split_names, metavar="NAMES", help=help)


def _text(help: str, default: str = "", *, param: str = "", **more: Any) -> Any:
    return Option(default, *((param,) if param else ()), help=help, **more)


def _flag(name: str, help: str) -> Any:
    """An option without a counterpart that begins with "no"."""
    return Option(False, name, help=help)


def _number(help: str, most: float) -> Any:
    """An option that is 0 where it is not given."""
    return Option(0.0, min=0.0, max=most, help=help)


def _complete_method(incomplete: str) -> list[str]:
    from privpipe.sanitizers import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def _complete_code(incomplete: str) -> list[str]:
    from privpipe.command.error_catalog import read_catalog

    return [code for code in read_catalog() if code.startswith(incomplete)]


CONFIG = Argument(help="TOML file, as privpipe init writes it.")
RELEASE = Argument(help="Path or URL of the release.")
RELEASE_OR_CONFIG = Argument(help="Path or URL of the release, or the TOML file it comes from.")
PUBLIC = _flag("--public", "The page for everybody, without small counts.")
FULL = _flag("--full", "Run every attack, even after one found a certain leak.")
CHUNK_MIB = Option(8.0, help="MiB of features per chunk.")
DEPLOYMENTS = "deploy/prefect.yaml"


@_calls("run_command:run_command", RUN)
def run(
    config: str = CONFIG,
    dry_run: bool = _flag("--dry-run", "Only say what would be read, needed and written."),
    time: str = _text("What {logical_time} in [release] path means (ISO 8601)."),
    trust: list[str] = Option([], help=HELP["run_trust"]),
    full: bool = FULL,
) -> None:
    """Run the main job: check, train, clean, audit, gate, publish; resumes where it stopped."""


@_calls("run_command:apply_command", RUN)
def apply(
    model: str = Argument(help="The model beside a published release, path or URL."),
    source: str = Argument(help=HELP["apply_source"]),
    dest: str = Argument(help=HELP["apply_dest"]),
    vouch: Any = _names("As [audit] vouched: what no label judges and you answer for, by comma."),
    stdout: bool = _flag("--stdout", HELP["apply_stdout"]),
) -> None:
    """Clean the next file with the model of a release: names matched, drift limited, audited."""


@_calls("run_command:run_command", RUN, until="train")
def train(config: str = CONFIG) -> None:
    """Run up to the fitted model, which waits in the private workspace."""


@_calls("run_command:run_command", RUN, until="clean")
def clean(config: str = CONFIG) -> None:
    """Run up to the cleaned records, proven complete; nothing is published."""


@_calls("run_command:audit_command", RUN)
def audit(
    config: str = Argument(help="TOML file; or, with RELEASED, the raw records as a table."),
    released: str = Argument("", help="A release of another tool: .csv, .parquet or .zarr."),
    target: Any = _names("Columns to keep, of a release of another tool, by comma."),
    confidential: Any = _names("Columns to hide, of a release of another tool, by comma."),
    holdout: str = _text("A table of records that a release of another tool was not made from."),
    full: bool = FULL,
) -> None:
    """Run up to the audit of what would be released, or audit a release that another tool made."""


@_calls("run_command:run_command", RUN)
def publish(config: str = CONFIG) -> None:
    """Do what is missing and publish; the same as run."""


@_calls("run_command:resume_command", RUN)
def resume(config: str = CONFIG) -> None:
    """Resume an interrupted run; an error when there is none."""


@_calls("check_command:check_command", START)
def check(
    config: str = CONFIG,
    cost_of: float = _number("Records to forecast the cost of, as 1e10: trains on a few.", 1e18),
    price: float = _number("Of an hour of one processor, for --cost-of.", 1e9),
    score: float = _number("Accuracy of the target: which order, and how much epsilon?", 1.0),
) -> None:
    """Check a configuration without a cluster, and say what its budget means."""


@_calls("check_command:suggest_command", START)
def suggest(
    config: str = CONFIG,
    out: str = _text(
        "TOML file for what would pass; default: beside CONFIG, .next.toml or .next1.toml."
    ),
) -> None:
    """Try what would pass the gate, on records that no audit judges, and write it."""


@_calls("ingest_command:ingest_command", START)
def ingest(
    source: str = Argument(help=f"{describe_formats()}; path or fsspec URL."),
    dest: str = Argument(help="Where the collection will be."),
    features: Any = _names("Array of the features, or columns by comma; default: the rest."),
    labels: Any = _names("Arrays or columns that become variables, by comma."),
    label_names: Any = _names("Names for the columns of a label matrix, by comma."),
    label_file: str = _text("Mulan's XML list of labels; default: the one beside the .arff."),
    categorical: Any = _names("Variables that are categorical."),
    numeric: Any = _names("Variables that are numeric."),
    one_hot: Any = _names(HELP["ingest_one_hot"]),
    dates: Any = _names("Columns of dates that become features, as days since 1970-01-01."),
    bins: Any = _names(HELP["ingest_bins"]),
    drop: Any = _names("Columns to leave out, such as identifiers."),
    min_category_count: int = Option(1, help=HELP["ingest_min_category_count"]),
    missing: Any = _names("Cells of a CSV file that mean a missing value, by comma."),
    delimiter: Any = Option(None, help=HELP["ingest_delimiter"]),
    schema: str = _text(HELP["ingest_schema"]),
    yes: bool = _flag("--yes", "Take the schema that is proposed without a review."),
    table: str = _text("Sheet of a workbook or table of a database, where there are several."),
    shuffle: bool = _flag("--shuffle", HELP["ingest_shuffle"]),
    dtype: str = _text("float32 or float64."),
    chunk_mib: float = CHUNK_MIB,
) -> None:
    """Make a collection from a foreign source, streaming; values are withheld.

    A table whose columns no option names is looked at first, and a schema written for review.
    """


@_calls("inspect_command:export_command", LOOK)
def export(
    release: str = Argument(help="A published release, path or URL."),
    out: str = Argument(help=HELP["export_out"]),
    verify: bool = _flag("--verify", "First read every byte and check it."),
) -> None:
    """Write a release as Parquet or CSV, or as a snapshot of an Icechunk repository."""


@_calls("report_command:estimate_command", LOOK)
def estimate(
    release: str = RELEASE,
    of: str = _text(HELP["estimate_of"], "means"),
    response: str = _text("Of a regression: an included variable, or a surrogates' response."),
    by: str = _text("Of differences, shares: an included category; an attribute of a mapping."),
    level: float = Option(0.95, help="Of the intervals."),
) -> None:
    """Estimate means, covariances, a regression or shares of the records, with error bars."""


@_calls("init_command:schema_command")
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""


@_calls("init_command:init_command", START)
def init(
    collection: str = Argument(help="The collection to sanitise, path or URL."),
    out: str = Argument("privpipe.toml", help="TOML file to write; - prints it."),
    method: str = _text(HELP["init_method"], autocompletion=_complete_method),
    desired: Any = _names("Variables to keep, by comma."),
    confidential: Any = _names("Variables to hide, by comma."),
    release: str = _text("Where the release will be."),
) -> None:
    """Write a commented configuration for a collection."""


@_calls("inspect_command:inspect_command", LOOK)
def inspect(
    path: str = Argument(help="Collection, model or release, path or URL."),
    verify: bool = _flag("--verify", "Read every byte of a collection or release."),
) -> None:
    """Describe a collection, a model or a release; values are withheld."""


@_calls("key_commands:sign_command")
def sign(
    release: str = RELEASE,
    key: str = Option(..., help="PEM file of an Ed25519 private key."),
    new_key: bool = _flag("--new-key", "First make that file, and the public key beside it."),
) -> None:
    """Sign a release: every stored byte, its configuration, audit and account."""


@_calls("key_commands:verify_command", LOOK)
def verify(
    release: str = RELEASE,
    key: str = Option(..., help="PEM file of the owner's public key."),
    after: str | None = Option(None, help="The signature must be younger (ISO 8601)."),
) -> None:
    """Check every byte of a release against its owner's signature, offline, without raw records."""


@_calls("demo_command:demo_command", START)
def demo(
    records: int = Option(8_388_396, help="Records: whole repeats of 1,797 scans."),
    out: str = _text("Folder of the demo.", "privpipe-demo"),
    workers: int = Option(2, min=0, help="Worker processes; 0: none, all in one."),
) -> None:
    """Run the main job on real records that come with the installation."""


@_calls("report_command:report_command", LOOK)
def report(release: str = RELEASE_OR_CONFIG, public: bool = PUBLIC) -> None:
    """Render the pages of a release's audit again, from its JSON, and say where they are."""


@_calls("inspect_command:diff_command", LOOK)
def diff(
    source: str = Argument(help="The collection that was cleaned, path or URL; or a run's name."),
    release: str = Argument(help="Its release, path or URL; or another run's name."),
    of: str = _text(HELP["diff_of"], "privpipe.toml", param="--release"),
) -> None:
    """Say per column how much a release changed, or how two attempts at it differ."""


@_calls("report_command:runs_command", LOOK)
def runs(release: str = RELEASE_OR_CONFIG) -> None:
    """List the attempts at a release: configuration, verdict, gain and target."""


@_calls("report_command:open_command", LOOK, name="open")
def open_(release: str = RELEASE, public: bool = PUBLIC) -> None:
    """Open the report of a release in a browser, or say where it is."""


@_calls("run_command:compare_command", LOOK)
def compare(config: str = CONFIG, vary: list[str] = Option([], help=HELP["compare_vary"])) -> None:
    """Compare the methods of [[compare]], or budgets of one: privacy against utility, as a page.

    Nothing is published. Interrupted, it resumes when it is called again.
    """


@_calls("error_catalog:explain_command")
def explain(
    code: str = Argument("", help=HELP["explain_code"], autocompletion=_complete_code),
) -> None:
    """Say when an error is raised, and what to do."""


@_calls("run_command:approve_command", RUN)
def approve(
    release: str = RELEASE_OR_CONFIG,
    name: str = _text("Who approves; published with the release."),
    reason: str = _text("Why; published with the release."),
) -> None:
    """Override a failed gate once, for exactly what it refused; `run` then publishes."""


@_calls("run_command:status_command", RUN)
def status(release: str = RELEASE_OR_CONFIG) -> None:
    """Say how far the run of a release is."""


@_calls("run_command:purge_command", RUN)
def purge(release: str = RELEASE_OR_CONFIG) -> None:
    """Remove what an interrupted run left behind."""


@_calls("deploy_command:deploy_command")
def deploy(path: str = Argument(DEPLOYMENTS, help="File of deployments.")) -> None:
    """Check a file of deployments and give it to the server that PREFECT_API_URL names."""


@_calls("gaps_command:gaps_command")
def gaps(
    deployment: str = Argument(help="Name of a deployment, as release."),
    since: str = _text("First logical time (ISO 8601); default: since it was first deployed."),
    fill: bool = _flag("--fill", "Queue a run for each that is missing or failed, in order."),
    end: bool = _flag("--end", "Promise nothing from now on of a name that is deployed no more."),
    waive: bool = _flag("--waive", "Note that those not there will not be made: no gaps any more."),
) -> None:
    """List releases that a deployment's schedule promised and that are not there, with reasons."""


_AS_INGEST = "As for `ingest`."


@_calls("ingest_command:append_command")
def append(
    source: str = Argument(help="As `ingest` takes it."),
    collection: str = Argument(help="The growing collection; made when missing."),
    partition: str = _text("Name of the partition; default: the source's."),
    time: str = _text("Its logical time (ISO 8601 with an offset); default: now."),
    replace: bool = _flag("--replace", "Take other records under a name that is there."),
    features: Any = _names(_AS_INGEST),
    labels: Any = _names(_AS_INGEST),
    categorical: Any = _names(_AS_INGEST),
    numeric: Any = _names(_AS_INGEST),
    one_hot: Any = _names(_AS_INGEST),
    dates: Any = _names(_AS_INGEST),
    missing: Any = _names(_AS_INGEST),
    drop: Any = _names(_AS_INGEST),
    chunk_mib: float = CHUNK_MIB,
) -> None:
    """Add a partition to a growing collection, on chunks of its own."""


@_calls("run_command:run_command")
def backfill(
    config: str = CONFIG,
    since: str = Option(..., "--from", help="First logical time (ISO 8601)."),
    time: str = Option(..., "--to", help="Last logical time, included."),
) -> None:
    """Release the partitions of a span that an incremental release does not have yet."""


@_calls("ingest_command:withdraw_command")
def withdraw(
    partition: str = Argument(help="Its name in the collection."),
    config: str = CONFIG,
    grace: float = Option(24.0, help="Hours until the records of its part are deleted; 0: now."),
) -> None:
    """Take a partition out of an incremental release, for ever."""


@_calls("erase_command:erase_command")
def erase(
    collection: str = Argument(help="In one piece or growing, path or URL."),
    where: str = _text(HELP["erase_where"]),
    under: list[str] = Option([], help=HELP["erase_under"]),
    account: str = _text("Where the register of releases is; default: PRIVPIPE_ACCOUNT."),
    name: str = _text("Who erases, for the certificate."),
    dry_run: bool = _flag("--dry-run", "Only say what would go, and what would be left."),
) -> None:
    """Erase records from a collection and from all that was made of them; certified, resumable."""


@_calls("deploy_command:doctor_command")
def doctor(
    config: str = CONFIG,
    deployments: str = _text("File of deployments to compare the server with.", DEPLOYMENTS),
) -> None:
    """Check all that a scheduled run needs: server, schedules, certificates, workers, places."""


@_calls("key_commands:certs_command")
def certs(
    folder: str = Argument(help="Where keys and certificates go; made 0700."),
    hosts: Any = _names("Names and addresses of scheduler and workers, by comma."),
    days: int = Option(90, help="How long the certificates hold."),
    renew: bool = _flag("--renew", "Make new ones of the same authority."),
) -> None:
    """Make authority and certificates of a Dask cluster, and the configuration that uses them."""


@_calls("key_commands:account_command")
def account(
    url: str = Argument("", help="Folder or URL of the account; default: PRIVPIPE_ACCOUNT."),
    sketch: str | None = Option(None, help=HELP["account_sketch"]),
    limit: str = _text("As [privacy] limit, 3.0 or 3.0,1e-5: how many more releases it allows."),
) -> None:
    """List the privacy budget that releases with differential privacy consumed, by partition."""


@_calls("key_commands:forget_key_command", name="forget-key")
def forget_key(
    release: str = Argument("", help="Path of the release, or name of a key; none lists all keys."),
) -> None:
    """Destroy the keys of a release's random draws, or list the keys there are."""
