"""Files of a table source: one file, or a folder whose files or Hive folders are partitions.

Reached through fsspec, so that a bucket works wherever a folder does.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree
from zipfile import BadZipFile, ZipFile

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from privpipe.errors import InputError, SourceError, StoreError
from privpipe.store.access.location import explain_unreachable, shown
from privpipe.store.sources.reading.source import ColumnKind, Columns, Forms, TableColumn

MOST_BYTES = 2**24
"""Read of a list of labels: far more than any has."""

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Hive writes into the name of a folder whose key has no value."""

DAMAGED = (OSError, EOFError, pa.ArrowException, BadZipFile)
"""What reading a stream of a damaged file raises; a checksum of an archive is its own error."""

Batches = Iterator[pa.RecordBatch]
"""Records of a file, some at a time, as columns."""


@dataclass(frozen=True)
class TableFile:
    """One file of a table.

    Parameters
    ----------
    path
        Path on its file system.
    partition
        Number of the partition it belongs to.
    keys
        Hive keys and values of its folders; a value is None where Hive writes its default.
    """

    path: str
    partition: int
    keys: tuple[tuple[str, str | None], ...] = ()

    def add_keys(self, batch: pa.RecordBatch, forms: Forms) -> pa.RecordBatch:
        """Add the Hive keys that `forms` names to a batch, whose columns get its order."""
        values = dict(self.keys)
        for name in (forms.keys() & values.keys()) - set(batch.schema.names):
            type_ = pa.float64() if forms[name] == "number" else pa.string()
            constant = pa.scalar(values[name], pa.string()).cast(type_)
            batch = batch.append_column(name, pa.repeat(constant, batch.num_rows))
        return batch.select(list(forms))


@dataclass(frozen=True, eq=False)
class TableFiles:
    """The files of a table in the order of its records.

    Parameters
    ----------
    system
        The fsspec file system.
    url
        Where the table is.
    kind
        Format of the files.
    files
        Sorted by path.
    partitions
        Names of the partitions: of files, or of folders in a Hive layout.
    """

    system: Any
    url: str
    kind: str
    files: tuple[TableFile, ...]
    partitions: tuple[str, ...]

    def add_key_columns(self, stored: Columns) -> Columns:
        """Add the Hive keys that files do not hold too: integers where every file has one.

        Those that float64 would round are text.
        """
        found, names = list(stored), {column.name for column in stored}
        for place, (name, _) in enumerate(self.files[0].keys):
            values = [file.keys[place][1] for file in self.files]
            # A file without a value of the key does not make it text.
            whole = all(v is None or v.lstrip("-").isdecimal() for v in values)
            whole = whole and all(int((v or "0").lstrip("-")) < 2**53 for v in values)
            if name not in names:
                kind: ColumnKind = "integer" if whole else "text"
                found.append(TableColumn(name, kind, "folder", optional=True))
        return tuple(found)

    def describe(self, file: TableFile) -> str:
        """A file as messages may name it: values in the names of Hive folders are left out."""
        if len(self.files) == 1:
            return shown(self.url)
        name = file.path.rstrip("/").rpartition("/")[2]
        where = "".join(f"{key}=*/" for key, _ in file.keys)
        return f"{where}{name} (partition {file.partition}) of {shown(self.url)}"


def list_files(url: str, kinds: Mapping[str, str]) -> TableFiles | None:
    """Find the table files at a place; None where there are none.

    Parameters
    ----------
    url
        A file or a folder.
    kinds
        Format by the end of a file's name, lower case.

    Raises
    ------
    InputError
        If a folder mixes formats, or Hive keys differ between its files.
    StoreError
        If there is nothing, or it cannot be listed.
    """
    try:
        system, root = fsspec.core.url_to_fs(url)
        root = root.rstrip("/")
        is_folder = bool(system.isdir(root))
        found = sorted(system.find(root)) if is_folder else [root]
        exists = is_folder or bool(system.exists(root))
    except Exception as error:  # many kinds, depending on the file system
        problem = explain_unreachable(url, error)
    else:
        if not exists:
            raise StoreError(
                f"There is nothing at {shown(url)}.", remedy="Check the path.", code="not-found"
            )
        for path in found:
            _check_readable(path, is_local=isinstance(system, LocalFileSystem))
        return _arrange(system, url, {path: path[len(root) :].strip("/") for path in found}, kinds)
    raise problem


def _check_readable(path: str, *, is_local: bool) -> None:
    """Refuse a name that is no text, and what would be waited at for ever: a pipe, a device."""
    is_text = not any("\ud800" <= character <= "\udfff" for character in path)
    problem = "" if is_text else "has a name that is not UTF-8"
    if is_local and not os.path.isfile(path):
        problem = "is no regular file"
    if problem:
        problem = f"{shown(path)} {problem}."
        remedy = "Rename it, or write the records to a file of their own."
        raise StoreError(problem, remedy=remedy, code="refused")


def _arrange(
    system: Any, url: str, relative: Mapping[str, str], kinds: Mapping[str, str]
) -> TableFiles | None:
    """Files by their path and their path below the source, in the order of its records."""
    # Spark and others leave markers such as _SUCCESS and .crc files beside the data. A key that
    # begins with an underscore has an equals sign.
    kind_of = {
        path: next((kind for end, kind in kinds.items() if path.lower().endswith(end)), "")
        for path, name in relative.items()
        if not any(part.startswith((".", "_")) and "=" not in part for part in name.split("/"))
    }
    tables = [path for path, kind in kind_of.items() if kind]
    if not tables:
        return None
    found = sorted({kind_of[path] for path in tables})
    if len(found) > 1:
        problem = f"{shown(url)} holds files of several formats: {', '.join(found)}."
        remedy = "Ingest one format at a time, each from a folder of its own."
        raise InputError(problem, remedy=remedy, code="mixed-formats")
    # Of every file: a folder that differs in one of them would give columns that some lack.
    keys = {path: _read_keys(relative[path]) for path in tables}
    if len({tuple(name for name, _ in value) for value in keys.values()}) > 1:
        problem = f"The folders below {shown(url)} differ in their Hive keys."
        remedy = "Use the same key=value levels for every file."
        raise InputError(problem, remedy=remedy, code="schema-drift")
    # Folders of keys are partitions as wholes, else each file is one.
    parts = {p: relative[p].rpartition("/")[0] if keys[p] else relative[p] for p in tables}
    places = {name: number for number, name in enumerate(dict.fromkeys(parts.values()))}
    files = tuple(TableFile(path, places[parts[path]], keys[path]) for path in tables)
    # A source of one file has no path below itself.
    names = tuple(name or tables[0].rpartition("/")[2] for name in places)
    return TableFiles(system, url, found[0], files, names)


def open_input(system: Any, path: str) -> pa.NativeFile:
    """Open a file for Arrow, decompressing by its name; a local one without detours.

    Raises
    ------
    OSError
        If it cannot be opened.
    """
    if path.lower().endswith(".zip"):
        return _open_zipped(system, path)
    compression = "gzip" if path.endswith(".gz") else None
    if isinstance(system, LocalFileSystem):
        raw: pa.NativeFile = pa.OSFile(path, "rb")
    else:
        raw = pa.PythonFile(system.open(path, "rb"), mode="r")
    return pa.CompressedInputStream(raw, compression) if compression else raw


def _open_zipped(system: Any, path: str) -> pa.NativeFile:
    """The only file of an archive; archives of several have no order of their own."""
    try:
        archive = ZipFile(system.open(path, "rb"))
        names = [one.filename for one in archive.infolist() if not one.is_dir()]
        if len(names) == 1:
            return pa.PythonFile(archive.open(names[0]), mode="r")
        problem = f"holds {len(names)} files, and is read where it holds one"
    except (BadZipFile, NotImplementedError, RuntimeError):
        problem = "cannot be read as .zip"
    problem = f"{shown(path)} {problem}."
    remedy = "Unpack it, and ingest the file, or the folder of them."
    raise SourceError(problem, remedy=remedy, code="archive")


def _read_keys(relative: str) -> tuple[tuple[str, str | None], ...]:
    """Keys and values of Hive folders, which quote values as URLs do; empty for other folders."""
    folders = relative.split("/")[:-1]
    if not all("=" in folder for folder in folders):
        return ()
    pairs = (folder.partition("=") for folder in folders)
    return tuple((name, None if value == HIVE_NULL else unquote(value)) for name, _, value in pairs)


def read_labels(system: Any, path: str) -> tuple[str, ...]:
    """Columns that Mulan's list of labels names: an XML file on a file system.

    The nested ones of a hierarchy are included.

    Raises
    ------
    SourceError
        If it cannot be read, or is not such a list.
    """
    names: tuple[str, ...] = ()
    problem = "is not a list of labels"
    remedy = 'Give Mulan\'s XML: <labels><label name="..."/></labels>.'
    try:
        with system.open(path, "rb") as file:
            tree = ElementTree.fromstring(file.read(MOST_BYTES))
        labels = (item for item in tree.iter() if item.tag.rpartition("}")[2] == "label")
        names = tuple(item.attrib["name"] for item in labels if "name" in item.attrib)
    except ElementTree.ParseError:
        pass
    except OSError as error:
        problem = f"cannot be read ({error.strerror or type(error).__name__})"
    if not names:
        raise SourceError(f"The label file {shown(path)} {problem}.", remedy=remedy)
    return names
