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
def ingest(
    source: Annotated[str, typer.Argument(help=".npz file or .zarr group, path or URL.")],
    dest: Annotated[str, typer.Argument(help="Where the collection will be.")],
    features: Annotated[str, typer.Option(help="Array of the features.")] = "",
    labels: Annotated[str, typer.Option(help="Arrays that become variables, by comma.")] = "",
    label_names: Annotated[
        str, typer.Option(help="Names for the columns of a label matrix, by comma.")
    ] = "",
    categorical: Annotated[str, typer.Option(help="Variables that are categorical.")] = "",
    numeric: Annotated[str, typer.Option(help="Variables that are numeric.")] = "",
    drop: Annotated[str, typer.Option(help="Variables to leave out.")] = "",
    dtype: Annotated[str, typer.Option(help="float32 or float64.")] = "",
    chunk_mib: Annotated[float, typer.Option(help="MiB of features per chunk.")] = 8.0,
) -> None:
    """Make a collection from a foreign source, streaming."""
    from flows.command.ingest import ingest_command
    from privpipe.store.ingest import IngestOptions
    from privpipe.store.sources import SourceLayout

    layout = SourceLayout(features or None, _names(labels) or None, _names(label_names) or None)
    options = IngestOptions(
        layout=layout,
        categorical=_names(categorical),
        numeric=_names(numeric),
        drop=_names(drop),
        dtype=dtype or None,
        chunk_bytes=max(1, int(chunk_mib * 2**20)),
    )
    ingest_command(source, dest, options)


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
