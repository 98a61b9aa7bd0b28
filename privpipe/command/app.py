"""The subcommands and their options; what they do is in the modules they load when called."""

from typing import Annotated, Any

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from privpipe.store.sources.formats import describe_formats

START, RUN, LOOK, OTHER = "Start", "Run", "Look and share", "More"
"""Headings of the help in their order; commands that name none come last."""

FIRST = ("demo", "ingest", "init", "check", "run")
"""Commands in the order in which they are needed; others as they are written."""

# Refused by name, not unknown: scripts of version 0.1 learn where their command is.
MOVED = {
    "frontier": "Use `privpipe compare CONFIG --vary n_filtered=2,5,10 --vary tradeoff=1,10`.",
    "tradeoff": "Use `privpipe compare CONFIG --vary distortion_budget=0,0.1,0.2`.",
}
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


app = typer.Typer(
    name="privpipe",
    cls=HeadedCommands,
    help="Sanitise very large record collections: the target is still predicted, what is "
    "confidential is not.",
    no_args_is_help=True,
    add_completion=True,
    # Typer's own tracebacks print the values of local variables.
    pretty_exceptions_enable=False,
    # Names of files in a message are no markup.
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 2 command line or configuration, 3 data, 4 storage, 5 cluster or "
    "memory, 6 guarantee or gate, 7 anything else, 130 interrupted. With --json stdout holds one "
    'JSON document, also on failure: {"error": {code, exit_code, message, remedy}}. '
    "--plain anywhere on the line, or PRIVPIPE_PLAIN=1, writes as for a log: no colour, no bar, no "
    "frames. --debug shows tracebacks, which may hold values of records.",
)

_Json = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
"""Acted upon by `main`, for all commands alike."""

_Time = Annotated[
    str, Option("--time", help="What {logical_time} in [release] path means (ISO 8601).")
]
_Config = Annotated[str, Argument(help="TOML file, as privpipe init writes it.")]
_Release = Annotated[
    str, Argument(help="Path or URL of the release, or the TOML file that it comes from.")
]
_Public = Annotated[bool, Option("--public", help="The page for everybody, without small counts.")]
_ChunkMib = Annotated[float, Option(help="MiB of features per chunk.")]
_AsIngest = Annotated[str, Option(help="As for `ingest`.")]


def _say_version(shown: bool) -> None:
    """Print the version and end."""
    if shown:
        # Here, as in all commands below: what a command does not need is not loaded for
        # --help.
        from privpipe import __version__
        from privpipe.report.console import say

        say(f"privpipe {__version__}")
        raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself; its help is the application's."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _as_bytes(mebibytes: float) -> int:
    # False of NaN, too.
    if not 0 < mebibytes < float("inf"):
        from privpipe.errors import OptionError

        raise OptionError(f"--chunk-mib is {mebibytes:g}.", remedy="Use a number above 0.")
    return max(1, int(mebibytes * 2**20))


def _complete_method(incomplete: str) -> list[str]:
    from privpipe.sanitizers import METHODS

    return [name for name in METHODS if name.startswith(incomplete)]


def _complete_code(incomplete: str) -> list[str]:
    from privpipe.command.error_catalog import read_catalog

    return [code for code in read_catalog() if code.startswith(incomplete)]


@app.command(rich_help_panel=RUN)
def run(
    config: _Config,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say what would be read, needed and written.")
    ] = False,
    time: _Time = "",
    trust: Annotated[
        list[str] | None,
        Option(help="SHA-256 of a file of code that the configuration names, once read."),
    ] = None,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Run the main job: check, train, clean, audit, gate, publish; resumes where it stopped."""
    if dry_run:
        from privpipe.command.check_command import dry_run_command

        return dry_run_command(config)
    from privpipe.pipeline.runs.trusted_code import remember_code

    # Before anything is read: the digest is compared when the file is.
    remember_code(trust or ())
    return _run_until(config, "publish", time)


@app.command(rich_help_panel=RUN)
def train(config: _Config, as_json: _Json = False) -> dict[str, Any]:
    """Run up to the fitted model, which waits in the private workspace."""
    return _run_until(config, "train")


@app.command(rich_help_panel=RUN)
def clean(config: _Config, as_json: _Json = False) -> dict[str, Any]:
    """Run up to the cleaned records, proven complete; nothing is published."""
    return _run_until(config, "clean")


@app.command(rich_help_panel=RUN)
def audit(config: _Config, as_json: _Json = False) -> dict[str, Any]:
    """Run up to the audit of what would be released; nothing is published."""
    return _run_until(config, "audit")


@app.command(rich_help_panel=RUN)
def publish(config: _Config, as_json: _Json = False) -> dict[str, Any]:
    """Do what is missing and publish; the same as run."""
    return _run_until(config, "publish")


@app.command(rich_help_panel=RUN)
def resume(config: _Config, as_json: _Json = False) -> dict[str, Any]:
    """Resume an interrupted run; an error when there is none."""
    from privpipe.command.run_command import resume_command

    return resume_command(config)


def _run_until(config: str, stage: str, time: str = "") -> dict[str, Any]:
    from privpipe.command.run_command import run_command

    return run_command(config, until=stage, time=time)


@app.command(rich_help_panel=START)
def check(config: _Config, as_json: _Json = False) -> dict[str, Any]:
    """Check a configuration without a cluster, and say what its budget means."""
    from privpipe.command.check_command import check_command

    return check_command(config)


@app.command(rich_help_panel=START)
def ingest(
    source: Annotated[str, Argument(help=f"{describe_formats()}; path or fsspec URL.")],
    dest: Annotated[str, Argument(help="Where the collection will be.")],
    features: Annotated[
        str, Option(help="Array of the features, or columns by comma; default: the rest.")
    ] = "",
    labels: Annotated[str, Option(help="Arrays or columns that become variables, by comma.")] = "",
    label_names: Annotated[
        str, Option(help="Names for the columns of a label matrix, by comma.")
    ] = "",
    label_file: Annotated[
        str, Option(help="Mulan's XML list of labels; default: the one beside the .arff.")
    ] = "",
    categorical: Annotated[str, Option(help="Variables that are categorical.")] = "",
    numeric: Annotated[str, Option(help="Variables that are numeric.")] = "",
    one_hot: Annotated[
        str,
        Option(
            help="Columns of text that become features of 0 and 1, one per category, by comma; "
            "names of categories become names of features, which are published."
        ),
    ] = "",
    dates: Annotated[
        str, Option(help="Columns of dates that become features, as days since 1970-01-01.")
    ] = "",
    bins: Annotated[
        str,
        Option(
            help="Columns of numbers that become categories, by comma: age=8 for 8 bins of about "
            "as many records each, age=25:40:60 for these edges; edges are published."
        ),
    ] = "",
    drop: Annotated[str, Option(help="Columns to leave out, such as identifiers.")] = "",
    min_category_count: Annotated[
        int, Option(help='Pool rarer categories to "(other)"; 1 pools nothing.')
    ] = 1,
    missing: Annotated[
        str, Option(help="Cells of a CSV file that mean a missing value, by comma.")
    ] = "",
    delimiter: Annotated[str, Option(help="Delimiter of a CSV file.")] = ",",
    dtype: Annotated[str, Option(help="float32 or float64.")] = "",
    chunk_mib: _ChunkMib = 8.0,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Make a collection from a foreign source, streaming; values are withheld."""
    from privpipe.command.ingest_command import ingest_command
    from privpipe.store.collections.ingest import IngestOptions
    from privpipe.store.sources.reading.source import MISSING_TEXT, SourceLayout

    layout = SourceLayout(
        features=_names(features),
        labels=_names(labels) or None,
        label_names=_names(label_names) or None,
        label_file=label_file or None,
        categorical=_names(categorical),
        numeric=_names(numeric),
        one_hot=_names(one_hot),
        dates=_names(dates),
        bins=_names(bins),
        drop=_names(drop),
        # An empty cell is missing whatever else is: a CSV file cannot write it otherwise.
        missing=("", *_names(missing)) if missing else MISSING_TEXT,
        # Shells make it hard to type a tab.
        delimiter="\t" if delimiter == "\\t" else delimiter,
    )
    options = IngestOptions(
        layout=layout,
        dtype=dtype or None,
        min_category_count=min_category_count,
        chunk_bytes=_as_bytes(chunk_mib),
    )
    return ingest_command(source, dest, options)


@app.command(rich_help_panel=LOOK)
def export(
    release: Annotated[str, Argument(help="A published release, path or URL.")],
    out: Annotated[
        str,
        Argument(
            help=".parquet file to write, or folder/ for a file per partition that the release "
            "keeps; path or fsspec URL."
        ),
    ],
    verify: Annotated[bool, Option("--verify", help="First read every byte and check it.")] = False,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Write a release as Parquet, streaming."""
    from privpipe.command.inspect_command import export_command

    return export_command(release, out, verify=verify)


@app.command()
def schema(as_json: _Json = False) -> dict[str, Any]:
    """Print the JSON schema of the configuration, for editors."""
    from privpipe.command.init_command import schema_command

    return schema_command()


@app.command(rich_help_panel=START)
def init(
    collection: Annotated[str, Argument(help="The collection to sanitise, path or URL.")],
    out: Annotated[str, Argument(help="TOML file to write; - prints it.")] = "privpipe.toml",
    method: Annotated[
        str,
        Option(
            help="Method whose options are written; default: what suits the variables named.",
            autocompletion=_complete_method,
        ),
    ] = "",
    desired: Annotated[str, Option(help="Variables to keep, by comma.")] = "",
    confidential: Annotated[str, Option(help="Variables to hide, by comma.")] = "",
    release: Annotated[str, Option(help="Where the release will be.")] = "",
    as_json: _Json = False,
) -> dict[str, Any]:
    """Write a commented configuration for a collection."""
    from privpipe.command.init_command import init_command

    return init_command(
        collection,
        out,
        method=method,
        desired=_names(desired),
        confidential=_names(confidential),
        release=release,
    )


@app.command(rich_help_panel=LOOK)
def inspect(
    path: Annotated[str, Argument(help="Collection, model or release, path or URL.")],
    verify: Annotated[
        bool, Option("--verify", help="Read every byte of a collection or release.")
    ] = False,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Describe a collection, a model or a release; values are withheld."""
    from privpipe.command.inspect_command import inspect_command

    return inspect_command(path, verify=verify)


@app.command(rich_help_panel=START)
def demo(
    records: Annotated[int, Option(help="Records: whole repeats of 1,797 scans.")] = 8_388_396,
    out: Annotated[str, Option(help="Folder of the demo.")] = "privpipe-demo",
    workers: Annotated[int, Option(help="Worker processes; 0: none, all in one.")] = 2,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Run the main job on real records that come with the installation."""
    from privpipe.command.demo_command import demo_command

    return demo_command(out, records, workers)


@app.command(rich_help_panel=LOOK)
def report(
    release: Annotated[str, Argument(help="Path or URL of the release.")],
    public: _Public = False,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Render the pages of a release's audit again, from its JSON, and say where they are."""
    from privpipe.command.report_command import report_command

    return report_command(release, public=public)


@app.command(rich_help_panel=LOOK)
def diff(
    source: Annotated[str, Argument(help="The collection that was cleaned, path or URL.")],
    release: Annotated[str, Argument(help="Its release, path or URL.")],
    as_json: _Json = False,
) -> dict[str, Any]:
    """Say per column how much a release changed; ratios, never values."""
    from privpipe.command.inspect_command import diff_command

    return diff_command(source, release)


@app.command("open", rich_help_panel=LOOK)
def open_(
    release: Annotated[str, Argument(help="Path of the release.")],
    public: _Public = False,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Open the report of a release in a browser, or say where it is."""
    from privpipe.command.report_command import open_command

    return open_command(release, public=public)


@app.command(rich_help_panel=LOOK)
def compare(
    config: _Config,
    vary: Annotated[
        list[str] | None,
        Option(
            help="Values of an option of the methods, as utility_budget=0.01,0.1: every one is "
            "compared; several options: every combination."
        ),
    ] = None,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Compare the methods of [[compare]], or budgets of one: privacy against utility, as a page.

    Nothing is published. Interrupted, it resumes when it is called again.
    """
    from privpipe.command.compare_command import compare_command

    return compare_command(config, vary or ())


@app.command()
def explain(
    code: Annotated[
        str,
        Argument(help="The code of error[CODE]; none lists all.", autocompletion=_complete_code),
    ] = "",
    as_json: _Json = False,
) -> dict[str, Any]:
    """Say when an error is raised, and what to do."""
    from privpipe.command.error_catalog import explain_command

    return explain_command(code)


@app.command(rich_help_panel=RUN)
def approve(
    release: _Release,
    name: Annotated[str, Option(help="Who approves; published with the release.")] = "",
    reason: Annotated[str, Option(help="Why; published with the release.")] = "",
    as_json: _Json = False,
) -> dict[str, Any]:
    """Override a failed gate once, for exactly what it refused; `run` then publishes."""
    from privpipe.command.run_command import approve_command

    return approve_command(release, name, reason)


@app.command(rich_help_panel=RUN)
def status(release: _Release, as_json: _Json = False) -> dict[str, Any]:
    """Say how far the run of a release is."""
    from privpipe.command.run_command import status_command

    return status_command(release)


@app.command(rich_help_panel=RUN)
def purge(release: _Release, as_json: _Json = False) -> dict[str, Any]:
    """Remove what an interrupted run left behind."""
    from privpipe.command.run_command import purge_command

    return purge_command(release)


@app.command()
def deploy(
    path: Annotated[str, Argument(help="File of deployments.")] = "deploy/prefect.yaml",
    as_json: _Json = False,
) -> dict[str, Any]:
    """Check a file of deployments and give it to the server that PREFECT_API_URL names."""
    from privpipe.command.deploy_command import deploy_command

    return deploy_command(path)


@app.command()
def append(
    source: Annotated[str, Argument(help="As `ingest` takes it.")],
    collection: Annotated[str, Argument(help="The growing collection; made when missing.")],
    partition: Annotated[str, Option(help="Name of the partition; default: the source's.")] = "",
    time: Annotated[str, Option("--time", help="Its logical time (ISO 8601); default: now.")] = "",
    replace: Annotated[
        bool, Option("--replace", help="Take other records under a name that is there.")
    ] = False,
    features: _AsIngest = "",
    labels: _AsIngest = "",
    categorical: _AsIngest = "",
    numeric: _AsIngest = "",
    drop: _AsIngest = "",
    chunk_mib: _ChunkMib = 8.0,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Add a partition to a growing collection, on chunks of its own."""
    from privpipe.command.ingest_command import append_command
    from privpipe.store.collections.ingest import IngestOptions
    from privpipe.store.sources.reading.source import SourceLayout

    layout = SourceLayout(
        features=_names(features),
        labels=_names(labels) or None,
        categorical=_names(categorical),
        numeric=_names(numeric),
        drop=_names(drop),
    )
    options = IngestOptions(layout=layout, chunk_bytes=_as_bytes(chunk_mib))
    return append_command(source, collection, partition, time, options, replacing=replace)


@app.command()
def backfill(
    config: _Config,
    since: Annotated[str, Option("--from", help="First logical time (ISO 8601).")],
    until: Annotated[str, Option("--to", help="Last logical time, included.")],
    as_json: _Json = False,
) -> dict[str, Any]:
    """Release the partitions of a span that an incremental release does not have yet."""
    from privpipe.command.run_command import run_command

    return run_command(config, time=until, since=since)


@app.command()
def withdraw(
    partition: Annotated[str, Argument(help="Its name in the collection.")],
    config: _Config,
    grace: Annotated[
        float, Option(help="Hours until the records of its part are deleted; 0: now.")
    ] = 24.0,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Take a partition out of an incremental release, for ever."""
    from privpipe.command.ingest_command import withdraw_command

    return withdraw_command(partition, config, grace)


@app.command()
def erase(
    collection: Annotated[str, Argument(help="In one piece or growing, path or URL.")],
    where: Annotated[
        str,
        Option(
            help='Which records: "name == value", or "name in FILE" with a value a line, which no '
            "history of commands holds."
        ),
    ] = "",
    record: Annotated[
        list[int] | None, Option(help="A record by its number from 0; needs --digest.")
    ] = None,
    digest: Annotated[
        str, Option(help="Of the collection, for whose state --record holds; 8 digits do.")
    ] = "",
    under: Annotated[
        list[str] | None,
        Option(help="Look through all below; default: the folder of the collection."),
    ] = None,
    account: Annotated[
        str, Option(help="Where the register of releases is; default: PRIVPIPE_ACCOUNT.")
    ] = "",
    name: Annotated[str, Option(help="Who erases, for the certificate.")] = "",
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only say what would go, and what would be left.")
    ] = False,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Erase records from a collection and from all that was made of them; certified, resumable."""
    from privpipe.command.erase_command import erase_command
    from privpipe.pipeline.operations.erase import ErasureOptions

    options = ErasureOptions(account, tuple(under or ()), name, digest)
    chosen = where, tuple(record or ())
    return erase_command(collection, chosen, options, dry_run=dry_run)


@app.command()
def doctor(
    config: _Config,
    deployments: Annotated[
        str, Option(help="File of deployments to compare the server with.")
    ] = "deploy/prefect.yaml",
    as_json: _Json = False,
) -> dict[str, Any]:
    """Check all that a scheduled run needs: server, schedules, certificates, workers, places."""
    from privpipe.command.deploy_command import doctor_command

    return doctor_command(config, deployments)


@app.command()
def certs(
    folder: Annotated[str, Argument(help="Where keys and certificates go; made 0700.")],
    hosts: Annotated[
        str, Option(help="Names and addresses of scheduler and workers, by comma.")
    ] = "",
    days: Annotated[int, Option(help="How long the certificates hold.")] = 90,
    renew: Annotated[bool, Option("--renew", help="Make new ones of the same authority.")] = False,
    as_json: _Json = False,
) -> dict[str, Any]:
    """Make authority and certificates of a Dask cluster, and the configuration that uses them."""
    from privpipe.command.key_commands import certs_command

    return certs_command(folder, _names(hosts), days, renew=renew)


@app.command()
def account(
    url: Annotated[
        str, Argument(help="Folder or URL of the account; default: PRIVPIPE_ACCOUNT.")
    ] = "",
    sketch: Annotated[
        str | None,
        Option(help="A collection of before there were sketches: know its records again."),
    ] = None,
    as_json: _Json = False,
) -> dict[str, Any]:
    """List the privacy budget that releases with differential privacy consumed, by partition."""
    from privpipe.command.key_commands import account_command

    return account_command(url, sketch=sketch)


@app.command("forget-key")
def forget_key(
    release: Annotated[
        str, Argument(help="Path of the release, or name of a key; none lists all keys.")
    ] = "",
    as_json: _Json = False,
) -> dict[str, Any]:
    """Destroy the keys of a release's random draws, or list the keys there are."""
    from privpipe.command.key_commands import forget_key_command

    return forget_key_command(release)
