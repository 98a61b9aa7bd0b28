"""``privpipe schema`` and ``privpipe init``: what a configuration may hold, and a first one."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from flows.options import RunOptions
from flows.template import write_template
from privpipe.errors import StoreError
from privpipe.store.collection import open_collection

__all__ = ["init_command", "schema_command"]


def schema_command() -> None:
    """Print the JSON schema of the configuration."""
    schema = RunOptions.model_json_schema()
    print(
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1)
    )


def init_command(
    collection: str,
    out: str,
    *,
    method: str,
    desired: Sequence[str],
    confidential: Sequence[str],
    release: str,
) -> None:
    """Write a commented configuration; an existing file is never overwritten."""
    schema = open_collection(collection).schema_of_records
    text = write_template(
        collection,
        schema,
        release=release or f"{collection.rstrip('/').removesuffix('.zarr')}.release.zarr",
        method=method,
        desired=desired,
        confidential=confidential,
    )
    if out == "-":
        print(text, end="")
        return
    problem = ""
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        problem = "exists"
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
    if problem:
        raise StoreError(f"{out} {problem}.", remedy="Choose another place.", code="exists")
    Console(highlight=False).print(
        f"{out}: fill in what is marked, then: privpipe run {out}", soft_wrap=True, markup=False
    )
