"""The subcommands and their options; what they do is in the modules they load when called."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["app"]

app = typer.Typer(
    name="privpipe",
    help="Sanitise very large record collections: the wanted prediction still works, the "
    "confidential one does not.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="--debug anywhere on the line shows tracebacks, which may hold values of records.",
)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="TOML file; see README.md for its keys.")],
) -> None:
    """Run the main job: check, train, clean, audit, publish."""
    from flows.command.run import run_command

    run_command(config)


@app.command()
def check(
    config: Annotated[str, typer.Argument(help="TOML file.")],
) -> None:
    """Check a configuration without a cluster, and say what its budget means."""
    from flows.command.check import check_command

    check_command(config)


@app.command()
def ingest(
    source: Annotated[
        str,
        typer.Argument(
            help=".csv(.gz), .parquet, .arff or .npz file, folder of .parquet or .csv, or .zarr "
            "group; path or fsspec URL."
        ),
    ],
    dest: Annotated[str, typer.Argument(help="Where the collection will be.")],
    features: Annotated[
        str, typer.Option(help="Array of the features, or columns by comma; default: the rest.")
    ] = "",
    labels: Annotated[
        str, typer.Option(help="Arrays or columns that become variables, by comma.")
    ] = "",
    label_names: Annotated[
        str, typer.Option(help="Names for the columns of a label matrix, by comma.")
    ] = "",
    label_file: Annotated[
        str, typer.Option(help="Mulan's XML list of labels; default: the one beside the .arff.")
    ] = "",
    categorical: Annotated[str, typer.Option(help="Variables that are categorical.")] = "",
    numeric: Annotated[str, typer.Option(help="Variables that are numeric.")] = "",
    drop: Annotated[str, typer.Option(help="Columns to leave out, such as identifiers.")] = "",
    min_category_count: Annotated[
        int, typer.Option(help='Pool rarer categories to "(other)"; 1 pools nothing.')
    ] = 1,
    missing: Annotated[
        str, typer.Option(help="Cells of a CSV file that stand for a missing value, by comma.")
    ] = "",
    delimiter: Annotated[str, typer.Option(help="Delimiter of a CSV file.")] = ",",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "",
    chunk_mib: Annotated[float, typer.Option(help="MiB of features per chunk.")] = 8.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make a collection from a foreign source, streaming; values are withheld."""
    from flows.command.ingest import ingest_command
    from privpipe.store.ingest import IngestOptions
    from privpipe.store.sources.source import MISSING_TEXT, SourceLayout

    layout = SourceLayout(
        features=_names(features),
        labels=_names(labels) or None,
        label_names=_names(label_names) or None,
        label_file=label_file or None,
        categorical=_names(categorical),
        numeric=_names(numeric),
        drop=_names(drop),
        missing=("", *_names(missing)) if missing else MISSING_TEXT,
        delimiter="\t" if delimiter == "\\t" else delimiter,
    )
    options = IngestOptions(
        layout=layout,
        dtype=dtype or None,
        min_category_count=min_category_count,
        chunk_bytes=max(1, int(chunk_mib * 2**20)),
    )
    ingest_command(source, dest, options, as_json=as_json)


@app.command()
def export(
    release: Annotated[str, typer.Argument(help="A published release, path or URL.")],
    out: Annotated[str, typer.Argument(help=".parquet file to write, path or fsspec URL.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="First read every byte and check it.")
    ] = False,
) -> None:
    """Write a release as a Parquet file, streaming."""
    from flows.command.export import export_command

    export_command(release, out, verify=verify)


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from flows.command.configuration import schema_command

    schema_command()


@app.command()
def init(
    collection: Annotated[str, typer.Argument(help="The collection to sanitise, path or URL.")],
    out: Annotated[str, typer.Argument(help="TOML file to write; - prints it.")] = "privpipe.toml",
    method: Annotated[str, typer.Option(help="Method whose options are written.")] = "null_space",
    desired: Annotated[str, typer.Option(help="Variables to keep, by comma.")] = "",
    confidential: Annotated[str, typer.Option(help="Variables to hide, by comma.")] = "",
    release: Annotated[str, typer.Option(help="Where the release will be.")] = "",
) -> None:
    """Write a commented configuration for a collection."""
    from flows.command.configuration import init_command

    init_command(
        collection,
        out,
        method=method,
        desired=_names(desired),
        confidential=_names(confidential),
        release=release,
    )


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="Collection, model or release, path or URL.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of a release and check it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a collection, a model or a release; values are withheld."""
    from flows.command.inspect import inspect_command

    inspect_command(path, verify=verify, as_json=as_json)


@app.command()
def demo(
    records: Annotated[
        int, typer.Option(help="Records: whole repeats of 1,797 scans.")
    ] = 8_388_396,
    out: Annotated[str, typer.Option(help="Folder of the demo.")] = "privpipe-demo",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
) -> None:
    """Run the main job on real records that come with the installation."""
    from flows.command.demo import demo_command

    demo_command(out, records, workers)


@app.command()
def status(
    release: Annotated[str, typer.Argument(help="Path or URL of the release.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how far the run of a release is."""
    from flows.command.status import status_command

    status_command(release, as_json=as_json)


@app.command()
def purge(
    release: Annotated[str, typer.Argument(help="Path or URL of the release.")],
) -> None:
    """Remove what an interrupted run left behind."""
    from flows.command.status import purge_command

    purge_command(release)


@app.command("forget-key")
def forget_key(
    release: Annotated[str, typer.Argument(help="Name of the key; none lists all.")] = "",
) -> None:
    """Destroy the key of a release's random draws, or list the keys there are."""
    from flows.command.keys import forget_key_command

    forget_key_command(release)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="Figure of a paper; none lists all.")] = "",
    data: Annotated[
        str, typer.Option(help="Folder of the data sets; default: PRIVPIPE_PAPER_DATA.")
    ] = "",
    runs: Annotated[int, typer.Option(help="Runs to average; 0: the figure's own number.")] = 0,
    out: Annotated[str, typer.Option(help="Folder for JSON, PNG and SVG.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Do a paper's figure again: our numbers beside the paper's, a verdict per cell."""
    from flows.command.reproduce import reproduce_command

    reproduce_command(name, data=data, runs=runs, out=out, as_json=as_json)
