"""Keys of Hive folders as columns: constant within a file, left out unless they are named."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from privpipe.store.sources.reading.files import TableFile, TableFiles
from privpipe.store.sources.reading.roles import Form, TableColumn


def with_key_columns(stored: tuple[TableColumn, ...], files: TableFiles) -> tuple[TableColumn, ...]:
    """Add the keys that the files do not hold too: integers where every file has one."""
    found = list(stored)
    names = {column.name for column in stored}
    for place, name in enumerate(files.key_names):
        if name in names:
            continue
        values = [file.keys[place][1] for file in files.files]
        whole = all(v is None or v.lstrip("-").isdecimal() for v in values)
        found.append(TableColumn(name, "integer" if whole else "text", "folder", optional=True))
    return tuple(found)


def with_keys(batch: pa.RecordBatch, file: TableFile, forms: Mapping[str, Form]) -> pa.RecordBatch:
    """Add the keys asked for to a batch of a file, and put columns into the order of `forms`."""
    values = dict(file.keys)
    for name, form in forms.items():
        if name not in values or name in batch.schema.names:
            continue
        value = values[name]
        is_number = form == "number" and value is not None
        constant = pa.scalar(
            float(value) if is_number and value else value,
            pa.float64() if form == "number" else pa.string(),
        )
        batch = batch.append_column(name, pa.repeat(constant, batch.num_rows))
    return batch.select(list(forms))
