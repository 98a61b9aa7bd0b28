"""Sheets of workbooks (.xlsx) and tables of databases (SQLite, DuckDB) as tables."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cached_property
from itertools import islice
from typing import Any

import pyarrow as pa

from privpipe.errors import InputError
from privpipe.records.schema import suggest
from privpipe.store.access.location import local_path
from privpipe.store.sources.arrow_file import columns_of
from privpipe.store.sources.reading.files import Batches, TableFile
from privpipe.store.sources.reading.source import Columns, Forms
from privpipe.store.sources.reading.table_source import FileTable


class OneOfSeveral(FileTable):
    """A file that holds several tables, of which one is read; a format says which there are."""

    what = "table"

    def list_tables(self, file: TableFile) -> list[str]:
        """Names of the tables of a file."""
        raise NotImplementedError

    def choose(self, file: TableFile) -> str:
        """The table that is named, or the only one.

        Raises
        ------
        InputError
            If none of that name is there, or none is named and there are several.
        SourceError
            If the file cannot be read.
        """
        there, name = self.guard(file, lambda: self.list_tables(file)), self.layout.dialect.table
        if name in there or (not name and len(there) == 1):
            return name or there[0]
        problem = f"has no {self.what} {name!r}{suggest(name, there)}" if name else ""
        raise InputError(
            f"{self.files.describe(file)} {problem or f'has {len(there)} {self.what}s'}.",
            remedy=f"Name one with --table: {', '.join(there)}.",
            code="which-table",
        )


class WorkbookTable(OneOfSeveral):
    """A sheet of a workbook; its first row has the names, and it is in memory, as a workbook is."""

    what, format_name = "sheet", "a workbook"

    def describe(self, file: TableFile) -> Columns:
        """Names of the first row, types of all cells."""
        return columns_of(self._tables[file].schema)

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`."""
        table = self._tables[file]
        yield from (table.select(list(forms)) if forms else table).to_batches(rows)

    def list_tables(self, file: TableFile) -> list[str]:
        """Names of the sheets that are not empty."""
        book = self._open(file)
        return [name for name in book.sheet_names if book.get_sheet_by_name(name).height]

    def count_heads(self) -> int:
        """The row of names."""
        return 1

    def find_lost(self, file: TableFile, names: Sequence[str]) -> Iterable[str]:
        """A cell is a double, whatever it shows; see `FileTable.find_lost`."""
        return [one.name for one in self._tables[file].schema if one.metadata and one.name in names]

    @cached_property
    def _tables(self) -> dict[TableFile, pa.Table]:
        return {file: self._read_sheet(file) for file in self.files.files}

    def _read_sheet(self, file: TableFile) -> pa.Table:
        sheet = self._open(file).get_sheet_by_name(self.choose(file))
        names, *rows = self.guard(file, lambda: sheet.to_python(skip_empty_area=True))
        columns = [*zip(*rows, strict=True)] if rows else [()] * len(names)
        arrays = [_as_array(column) for column in columns]
        # What is marked has lost digits; of texts and numbers this is not seen afterwards.
        marks = [{"lost": ""} if any(map(_is_rounded, cells)) else None for cells in columns]
        found = zip(map(str, names), arrays, marks, strict=True)
        return pa.table(arrays, pa.schema([pa.field(n, a.type, metadata=m) for n, a, m in found]))

    def _open(self, file: TableFile) -> Any:
        # Of an extra: the library alone reads no workbook.
        from python_calamine import CalamineWorkbook

        def read() -> Any:
            with self.files.system.open(file.path, "rb") as stream:
                return CalamineWorkbook.from_filelike(stream)

        return self.guard(file, read)


def _as_array(cells: Sequence[Any]) -> pa.Array:
    """Cells of a sheet or an untyped table as numbers, dates or text; empty ones are missing."""
    present = [None if cell == "" else cell for cell in cells]
    kinds = {type(cell) for cell in present if cell is not None}
    if not kinds <= {int, float} and len(kinds) > 1:
        # 12 is written as 12 among texts, not as 12.0: a workbook has no whole numbers.
        present = [None if cell is None else _write(cell) for cell in present]
    elif kinds == {float} and not any(c and (c % 1 or abs(c) >= 2**63) for c in present):
        present = [None if cell is None else int(cell) for cell in present]
    return pa.array(present)


def _is_rounded(cell: Any) -> bool:
    return isinstance(cell, int | float) and abs(cell) >= 2**53


def _write(cell: Any) -> str:
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


_TYPES = {
    frozenset({"integer"}): pa.int64(),
    frozenset({"real"}): pa.float64(),
    frozenset({"integer", "real"}): pa.float64(),
    frozenset({"blob"}): pa.binary(),
}
"""Of a column of SQLite, by the kinds of its values; of any other, text."""


class SqliteTable(OneOfSeveral):
    """A table of a database of SQLite."""

    format_name = "a database"

    def describe(self, file: TableFile) -> Columns:
        """Columns, by the types that their values have."""
        return columns_of(self.guard(file, lambda: self._schema(file)))

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`."""
        schema, table = self.guard(file, lambda: self._schema(file)), _quoted(self.choose(file))
        chosen = pa.schema([schema.field(name) for name in forms] or schema)
        # Numbers among texts are texts, whole ones among others floating ones: SQLite makes them.
        casts = {pa.string(): "CAST({} AS TEXT)", pa.float64(): "CAST({} AS REAL)"}
        names = ", ".join(casts.get(c.type, "{}").format(_quoted(c.name)) for c in chosen)
        with closing(self._connect(file)) as database:
            found = database.execute(f"SELECT {names} FROM {table}")
            while block := self.guard(file, lambda: found.fetchmany(rows)):
                arrays = [
                    pa.array(v, one.type)
                    for one, v in zip(chosen, zip(*block, strict=True), strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=chosen)

    def list_tables(self, file: TableFile) -> list[str]:
        """Names of tables and views."""
        query = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
        with closing(self._connect(file)) as database:
            return [name for (name,) in database.execute(query) if not name.startswith("sqlite_")]

    def _schema(self, file: TableFile) -> pa.Schema:
        """SQLite declares no type that values must have, so theirs are looked at."""
        table, found = _quoted(self.choose(file)), list[tuple[str, Any]]()
        with closing(self._connect(file)) as database:
            for name in [row[1] for row in database.execute(f"PRAGMA table_info({table})")]:
                query = f"SELECT DISTINCT typeof({_quoted(name)}) FROM {table}"
                kinds = {kind for (kind,) in database.execute(query)} - {"null"}
                found.append((name, _TYPES.get(frozenset(kinds), pa.string())))
        return pa.schema(found)

    def _connect(self, file: TableFile) -> sqlite3.Connection:
        path = local_path(file.path)
        if path is None:
            raise InputError("A database is a local file.", remedy="Copy it to this machine first.")
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


class DuckdbTable(OneOfSeveral):
    """A table of a database of DuckDB."""

    format_name = "a database"

    def describe(self, file: TableFile) -> Columns:
        """Columns as the database declares them."""
        return columns_of(next(self._batches(file, "*", 1)).schema)

    def read(self, file: TableFile, columns: Columns, forms: Forms, rows: int) -> Batches:
        """Read columns; see `FileTable.read`."""
        yield from self._batches(file, ", ".join(map(_quoted, forms)) or "*", rows)

    def list_tables(self, file: TableFile) -> list[str]:
        """Names of tables and views."""
        with self._connect(file) as database:
            return [name for (name,) in database.execute("SHOW TABLES").fetchall()]

    def _batches(self, file: TableFile, columns: str, rows: int) -> Batches:
        table = _quoted(self.choose(file))
        with self._connect(file) as database:
            reader = database.sql(f"SELECT {columns} FROM {table}").to_arrow_reader(rows)
            yield from islice(reader, 1) if rows == 1 else reader

    def _connect(self, file: TableFile) -> Any:
        # Of an extra, as workbooks.
        import duckdb

        return self.guard(file, lambda: duckdb.connect(file.path, read_only=True))


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
