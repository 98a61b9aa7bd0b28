"""Tables in files as sources: what all formats of tables share, and what each of them must say.

Record batches of columns become blocks of a feature matrix and variables.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from privpipe.errors import InputError, SourceError
from privpipe.numerics.kinds import is_large
from privpipe.protocols import AnyArray
from privpipe.store.access.location import guard_read, shown
from privpipe.store.sources.reading import roles, source
from privpipe.store.sources.reading.conversions import convert_cells, explain_cells, needs_text
from privpipe.store.sources.reading.files import Batches, TableFile, TableFiles

SAMPLE_ROWS, MOST_BATCHES = 4_096, 16
"""Records of a sample of a file that declares its types, and places they are taken from."""

WHOLE = r"^\s*[+-]?[0-9]{16,}\s*$"
"""What whole numbers look like of which float64 may round some."""


class FileTable:
    """A table in files of one format; a format says `describe` and `read`.

    Parameters
    ----------
    files
        The files.
    layout
        What their columns are.
    """

    declares_types = True
    """Whether files say the types of their columns; else those of the first file hold for all."""

    format_name = "a table"
    has_text = False
    """Whether a cell that is missing is written as a text."""

    def __init__(self, files: TableFiles, layout: source.SourceLayout) -> None:
        self.files, self.layout = files, layout

    def describe(self, file: TableFile) -> source.Columns:
        """Columns of a file."""
        raise NotImplementedError

    def read(
        self, file: TableFile, columns: source.Columns, forms: source.Forms, rows: int
    ) -> Batches:
        """Read some columns of a file.

        Parameters
        ----------
        file
            The file.
        columns
            Its columns, as `describe` found them.
        forms
            Columns to read, and how; where there are none, batches need only have their length.
        rows
            Records per batch, about.

        Yields
        ------
        batch
            With a column for each of `forms`: a number as any numeric type, text as text or a
            dictionary.
        """
        raise NotImplementedError

    def look(self) -> tuple[str, source.Dialect, source.Columns, pa.Table]:
        """Delimiter, dialect, columns, and a sample of the first file."""
        file = self.files.files[0]
        columns = self.describe(file)
        batches = [batch for batch in self.read_sample(file) if batch.num_rows]
        if not batches:
            raise InputError(f"{self.where} has no records.", remedy="Give one.", code="empty")
        return ",", self.layout.dialect, columns, pa.Table.from_batches(batches)

    def read_sample(self, file: TableFile) -> Batches:
        """Batches of a sample of all columns: the first ones, where nothing better is known."""
        columns = self.describe(file)
        kinds = {c.name: "text" if c.kind in ("text", "other") else "number" for c in columns}
        forms = cast(source.Forms, kinds)
        yield from islice(self.read(file, columns, forms, SAMPLE_ROWS), MOST_BATCHES)

    def read_labels(self) -> tuple[str, ...]:
        """Columns that a list of labels names; none where there is none."""
        return ()

    def guard(self, file: TableFile, read: Callable[[], Any]) -> Any:
        """What is read, or an error that quotes nothing of a damaged file."""
        problem = f"{self.files.describe(file)} cannot be read as {self.format_name}"
        remedy = "The file is damaged, cut short or something else: write it again."
        return guard_read(read, SourceError, problem, remedy=remedy)

    def locate_text(self, name: str) -> str:
        """Where the first text of a column is, to follow its name; nothing if not known."""
        return ""

    @property
    def where(self) -> str:
        """The table, for messages."""
        return shown(self.files.url)

    @cached_property
    def columns(self) -> source.Columns:
        """Columns of the first file, and the Hive keys."""
        return self.files.add_key_columns(self._describe(self.files.files[0]))

    def check_numbers(self, features: Sequence[str], variables: Sequence[str]) -> None:
        """Refuse numbers of a text that are codes; declared numbers are what they are."""

    def find_lost(self, file: TableFile, names: Sequence[str]) -> Iterable[str]:
        """Columns with whole numbers whose digits are lost before they can be read as text."""
        return ()

    def rounds(self, name: str) -> bool:
        """Whether cells of a variable are 16 digits and more, without a point or an exponent.

        Floating numbers are none: as text they have an exponent.
        """
        return any(
            pc.any(pc.match_substring_regex(batch.column(0).cast(pa.string()), WHOLE)).as_py()
            for file in self.files.files
            for batch in self.read(file, self._describe(file), {name: "text"}, SAMPLE_ROWS)
        )

    def count_heads(self) -> int:
        """Rows of a file before its first record."""
        return 0

    def _describe(self, file: TableFile) -> source.Columns:
        """Columns of a file, as a schema says them where one was reviewed."""
        said = self.layout.dialect.columns
        return tuple(
            _as_said(one, said[one.name]) if one.name in said else one
            for one in self.describe(file)
        )

    def batches(self, forms: source.Forms, rows: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Number of the partition, and a batch of at most `rows` records with `forms` in order.

        Files whose columns differ from the first's are refused.
        """
        stored = [column for column in self.columns if not column.optional]
        read = {column.name: forms[column.name] for column in stored if column.name in forms}
        for file in self.files.files:
            columns, where = self._describe(file), self.files.describe(file)
            roles.check_drift(stored, columns, where, with_types=self.declares_types)
            found = self.read(file, columns, self._as_text(read), rows)
            for batch in self._convert(found, read, where):
                for start in range(0, batch.num_rows, rows):
                    yield file.partition, file.add_keys(batch.slice(start, rows), forms)

    def _as_text(self, forms: source.Forms) -> dict[str, source.Form]:
        """Forms to read in: columns that are converted here are text until then."""
        said, dialect = self.layout.dialect.columns, self.layout.dialect
        return {
            name: "text" if name in said and needs_text(said[name], dialect) else form
            for name, form in forms.items()
        }

    def _convert(self, batches: Batches, forms: source.Forms, where: str) -> Batches:
        """Convert what a schema says of the columns; all rows of a column that do not fit."""
        dialect, wrong = self.layout.dialect, dict[str, list[int]]()
        first = self.count_heads() + 1
        for batch in batches:
            arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
            for name in arrays.keys() & dialect.columns.keys():
                said = dialect.columns[name]
                # An untyped file may hold texts where the one of the schema held numbers.
                if needs_text(said, dialect) or forms.get(name) == "number":
                    cells, missing = arrays[name], self.layout.missing
                    arrays[name], bad = convert_cells(cells, said, dialect, missing)
                    if len(bad):
                        wrong.setdefault(name, []).extend((bad + first).tolist())
            first += batch.num_rows
            # Once a cell is wrong the rest is read for the list of errors alone.
            if not wrong:
                yield pa.RecordBatch.from_pydict(arrays) if arrays else batch
        if wrong:
            name = min(wrong, key=lambda one: wrong[one][0])
            error = explain_cells(where, name, dialect.columns[name], wrong[name])
            others = (explain_cells(where, one, dialect.columns[one], wrong[one]) for one in wrong)
            error.details = tuple(place for one in others for place in one.details)
            raise error


def _as_said(column: source.TableColumn, said: source.ColumnText) -> source.TableColumn:
    if said.kind == "date":  # as Arrow names what it becomes
        name = column.type_name if column.is_date else "timestamp"
        return replace(column, kind="other", type_name=name)
    if said.kind == "ordered":
        return replace(column, kind="number", narrow=True)
    # Whole numbers may be classes, as where no schema says what they are.
    kind = column.kind if (said.kind, column.kind) == ("number", "integer") else said.kind
    return replace(column, kind=kind, narrow=column.narrow and kind == column.kind)


def open_table(table: FileTable) -> source.RecordSource:
    """A table as a source of records.

    Raises
    ------
    OptionError, InputError, SourceError
        If columns and options do not fit; see `assign_roles`.
    """
    if table.layout.dialect.columns:
        roles.check_schema(table.layout.dialect.columns, table.columns, table.where)
    labels = table.read_labels()
    chosen = roles.assign_roles(table.columns, table.layout, labels, table.where, table.locate_text)
    return source.RecordSource(
        chosen.features,
        len(chosen.features),
        chosen.features_dtype,
        chosen.variables,
        table.files.partitions,
        partial(_read_blocks, table, chosen),
        rounds=table.rounds,
    )


def _read_blocks(
    table: FileTable, chosen: roles.Roles, rows: int, with_features: bool
) -> Iterator[source.Block]:
    names = chosen.features if with_features else ()
    forms: dict[str, source.Form] = {**dict.fromkeys(names, "number"), **chosen.forms}
    if not with_features:  # of two passes the first
        numbers = [name for name, form in chosen.forms.items() if form == "number"]
        table.check_numbers(chosen.features, numbers)
        lost = (table.find_lost(file, [*chosen.forms]) for file in table.files.files)
        for name in chain.from_iterable(lost):  # as text, too, two of them may be one
            raise InputError(
                f"{name!r} holds whole numbers of 2**53 and more, whose last digits are lost.",
                remedy="Write codes as text where the file is made: quoted in JSON, in a workbook "
                "in cells formatted as text. Write numbers with an exponent, in JSON or CSV.",
                code="rounded-key",
            )
    booleans = {column.name for column in table.columns if column.is_boolean}
    unnamed = [c for c in table.columns if c.name in {*names} - {*table.layout.features}]
    for number, (partition, batch) in enumerate(table.batches(forms, rows)):
        matrix = as_matrix(batch.select(list(names)), chosen.features_dtype)
        # The first batch only: a key shows itself in a thousand records.
        if number == 0:
            roles.check_keys(unnamed, dict(zip(names, matrix.T, strict=True)), table.where)
        variables = {
            name: as_coded(batch.column(name), is_boolean=name in booleans)
            if form == "text"
            else as_exact(batch.column(name))
            for name, form in chosen.forms.items()
        }
        yield source.Block(partition, batch.num_rows, matrix, variables)


def kind_of(type_: Any) -> source.ColumnKind:
    """What a column of an Arrow type holds.

    >>> kind_of(pa.int8()), kind_of(pa.dictionary(pa.int32(), pa.string())), kind_of(pa.date32())
    ('integer', 'text', 'other')
    """
    t = pa.types
    kinds: dict[source.ColumnKind, tuple[Callable[[Any], bool], ...]] = {
        "boolean": (t.is_boolean,),
        "integer": (t.is_integer,),
        "number": (t.is_floating, t.is_decimal, t.is_null),
        "text": (t.is_dictionary, t.is_string, t.is_large_string, t.is_string_view),
    }
    return next((kind for kind, tests in kinds.items() if any(f(type_) for f in tests)), "other")


def is_narrow(type_: Any) -> bool:
    """Whether float32 holds each number of an Arrow type exactly."""
    t = pa.types
    if t.is_floating(type_):
        return int(type_.bit_width) <= 32
    return bool(t.is_boolean(type_) or (t.is_integer(type_) and type_.bit_width <= 16))


def as_matrix(batch: pa.RecordBatch, dtype: np.dtype[Any]) -> AnyArray:
    """Numeric columns as a matrix, (n_records, n_columns), NaN where missing."""
    types = batch.schema.types
    if types and all(type_ == pa.from_numpy_dtype(dtype) for type_ in types):
        return np.asarray(batch.to_tensor(null_to_nan=True, row_major=True).to_numpy())
    # float64 wherever narrower numbers would lose something.
    narrow = dtype == np.float32 and all(map(is_narrow, types))
    matrix = np.empty((batch.num_rows, batch.num_columns), np.float32 if narrow else np.float64)
    for j, column in enumerate(batch.columns):
        matrix[:, j] = as_numbers(column)
    return matrix


def as_numbers(column: pa.Array) -> AnyArray:
    """A numeric column as an array, NaN where missing; dates as days since 1970-01-01."""
    if pa.types.is_boolean(column.type) or pa.types.is_null(column.type):
        column = column.cast(pa.float32())
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        # By microseconds: dates before 1970 and times of a day keep their fractions.
        # Nanoseconds are cut off: Arrow would refuse them, and quote the time.
        times = column.cast(pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
        # By numpy: Arrow refuses a quotient of whole numbers beyond 2**53, dates before 1685.
        return cast(AnyArray, (times - np.datetime64(0, "us")) / np.timedelta64(1, "D"))
    return np.asarray(column.to_numpy(zero_copy_only=False))


def as_exact(column: pa.Array) -> AnyArray | source.Coded:
    """A numeric column as `as_numbers` gives it, or coded where that would round exact numbers."""
    numbers, kind, t = as_numbers(column), column.type, pa.types
    is_rounded = numbers.dtype.kind == "f" and (t.is_integer(kind) or t.is_decimal(kind))
    return as_coded(column) if is_rounded and is_large(numbers) else numbers


def as_coded(column: pa.Array, *, is_boolean: bool = False) -> source.Coded:
    """A column of text, or of anything that can be written as text, as codes.

    Truth values are written in one way whatever the source: "true" and "false".
    """
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    codes = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.dictionary
    read = partial(values.cast, pa.string())
    problem = f"A column of type {values.type} cannot be written as text"
    remedy = "Leave it out with --drop."
    names = guard_read(read, InputError, problem, remedy=remedy, code="column-type")
    # A dictionary may hold a null of its own, to which codes then point.
    gone = np.flatnonzero(names.is_null().to_numpy(zero_copy_only=False))
    if len(gone):
        codes[np.isin(codes, gone)] = -1
    found = tuple(str(name) for name in names.to_pylist())
    if is_boolean:
        found = tuple(n.lower() if n.lower() in ("true", "false") else n for n in found)
    return source.Coded(codes, found)
