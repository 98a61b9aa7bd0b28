"""A schema to review: how a table is read and what its columns become, proposed by looking at it.

It is a TOML file that people change. The second call takes it, the collection holds it, and later
files are matched against it by name.
"""

import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self, get_args

import fsspec
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from privpipe.errors import InputError, OptionError
from privpipe.store.access import location
from privpipe.store.sources.formats import open_file_table
from privpipe.store.sources.reading import column_guess
from privpipe.store.sources.reading.column_guess import STRICT, ColumnPlan
from privpipe.store.sources.reading.roles import MOST_COLUMNS, too_wide
from privpipe.store.sources.reading.source import Dialect, SourceLayout

ENDING = ".schema.toml"

HEAD = Path(__file__).with_name("schema_head.toml").read_text("utf-8")


@checked(frozen=True, config=STRICT)
class FileForm:
    """How the file of a schema is written; see `Dialect`."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal: str = "."
    thousands: str = ""
    skip_first: Annotated[int, Field(ge=0)] = 0
    skip_last: Annotated[int, Field(ge=0)] = 0
    header: bool = True
    trim: bool = False
    multiline: bool = True
    missing: tuple[str, ...] = ()
    min_category_count: Annotated[int, Field(ge=1)] = 1
    table: str = ""


USES: Mapping[str, column_guess.Use] = {
    "features": "feature",
    "labels": "variable",
    "one_hot": "indicators",
    "dates": "days",
    "calendar": "calendar",
    "marked": "marked",
    "drop": "drop",
}
"""What columns become, by the field of `SourceLayout` that names them."""

VARIABLE_USES: tuple[str, ...] = get_args(column_guess.VariableUse)
"""What columns become that are variables."""

N_PERIODS = 4
"""Of about as many records each, which a column of times becomes."""

_SHARED = {one.name for one in fields(Dialect)} & {one.name for one in fields(FileForm)}
"""What a schema says of a file as a dialect does, under the same name."""


@dataclass(frozen=True)
class TableSchema:
    """How a table is read and what its columns become.

    Parameters
    ----------
    file
        How it is written.
    columns
        By name, in the order of the table.
    """

    file: FileForm
    columns: Mapping[str, ColumnPlan] = field(hash=False)

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers that become features, written as usual."""
        plain = all(
            one.use == "feature" and not (one.missing or one.format)
            for one in self.columns.values()
        )
        return plain and replace(self.file, missing=(), multiline=True) == FileForm()

    def layout(self, **named: Any) -> SourceLayout:
        """The layout of a source.

        Parameters
        ----------
        named
            Fields of `SourceLayout` that take precedence: a column that one of them names has the
            role that it is given there.
        """
        uses: dict[str, list[str]] = defaultdict(list)
        chosen = {one for role in USES for one in named.get(role) or ()}
        chosen |= {one.partition("=")[0] for one in named.get("bins") or ()}
        for name, plan in self.columns.items():
            if name not in chosen:
                uses[plan.use].append(name)
        labelled = [name for use in VARIABLE_USES for name in uses[use]]
        variables = [*labelled, *(named.get("labels") or ())]
        subjects = [one for one in uses["subject"] if self.columns[one].kind == "number"]
        periods = [f"{name}={N_PERIODS}" for name in uses["time"]]
        texts = [one for one in variables if self.columns[one].kind == "text"] if variables else []
        dialect = Dialect(
            **{name: getattr(self.file, name) for name in _SHARED},
            names=() if self.file.header else tuple(self.columns),
            columns={name: plan.text for name, plan in self.columns.items()},
        )
        roles = ("marked", "one_hot", "dates", "calendar", "drop")
        found: dict[str, Any] = {r: (*uses[USES[r]], *(named.get(r) or ())) for r in roles}
        found |= {
            "features": (*uses["feature"], *uses["marked"], *(named.get("features") or ())),
            "numeric": (*uses["weights"], *subjects, *(named.get("numeric") or ())),
            "bins": (*periods, *(named.get("bins") or ())),
            "labels": tuple(variables),
            "categorical": tuple(dict.fromkeys((*texts, *(named.get("categorical") or ())))),
        }
        found["features"] = tuple(n for n in found["features"] if n not in found["drop"])
        others: dict[str, Any] = {"missing": self.file.missing, "delimiter": self.file.delimiter}
        others |= {key: one for key, one in named.items() if key not in found}
        return SourceLayout(**others, **found, dialect=dialect)

    def overruled(self, layout: SourceLayout) -> Self:
        """With the roles that a layout gives to columns by name, as a later file is read too."""
        given = {name: use for role, use in USES.items() for name in getattr(layout, role) or ()}
        columns = {
            name: replace(plan, use=given.get(name, plan.use))
            for name, plan in self.columns.items()
        }
        return replace(self, columns=columns)

    def encode(self) -> dict[str, Any]:
        """JSON-ready, without invented examples."""
        return {
            "file": _said(self.file),
            "column": {
                name: {k: v for k, v in _said(plan).items() if k not in ("examples", "why")}
                for name, plan in self.columns.items()
            },
        }

    def as_toml(self) -> str:
        """The file that people review."""
        tables = {"[file]": asdict(self.file)}
        tables |= {f"\n[column.{_as_text(n)}]": _said(one) for n, one in self.columns.items()}
        lines = [HEAD]
        for head, keys in tables.items():
            lines += [head, *(f"{key} = {_as_text(value)}" for key, value in keys.items())]
        return "\n".join(lines)


def _said(options: Any) -> dict[str, Any]:
    """Fields that are not empty."""
    return {key: one for key, one in asdict(options).items() if one not in ("", (), [], 0.0)}


def _as_text(value: Any) -> str:
    # JSON of texts, numbers, flags and lists is TOML, but for a character that TOML escapes.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def decode_schema(content: Any, where: str) -> TableSchema:
    """A schema from what `encode` or a TOML file says.

    Raises
    ------
    OptionError
        With each key that is wrong.
    """
    unknown = sorted(set(content) - {"file", "column"}) if isinstance(content, dict) else [""]
    try:
        file = TypeAdapter(FileForm).validate_python(content.get("file", {}))
        columns = TypeAdapter(dict[str, ColumnPlan]).validate_python(content.get("column", {}))
        problems = [f"{key} is no key" for key in unknown]
        problems += [
            f"{name}: order holds what file.missing takes for missing, take it out there"
            for name, plan in columns.items()
            if set(plan.order) & {*file.missing, *plan.missing}
        ]
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    except AttributeError:
        problems = ["it is no table"]
    if problems or not columns:
        problem = f"The schema {where} is wrong: {'; '.join(problems) or 'it has no columns'}."
        remedy = "Correct it, or remove it and let `privpipe ingest` look again."
        raise OptionError(problem, remedy=remedy, code="schema")
    return TableSchema(file, columns)


def read_schema(url: location.Place) -> TableSchema:
    """Read a schema that was reviewed.

    Raises
    ------
    StoreError, OptionError
        If it cannot be read, or holds something else.
    """
    place = location.as_url(url)
    text = location.guard_read(
        lambda: fsspec.open(place, "rb").open().read().decode(),
        InputError,
        f"The schema {location.shown(place)} cannot be read",
        remedy="Check the path; it is a text in UTF-8.",
    )
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Line and column, and nothing of the file's values.
        problem = "".join(re.findall(r" \(at .*\)$", str(error)))
    else:
        return decode_schema(content, location.shown(place))
    problem = f"The schema {location.shown(place)} is no TOML{problem}."
    raise OptionError(problem, remedy="Correct it.", code="schema")


def propose_schema(url: location.Place, *, table: str = "") -> TableSchema:
    """Look at a table, a sample of all parts of it, and propose how to read it.

    Parameters
    ----------
    url
        A file, or a folder of files of one format, of which the first is looked at.
    table
        Sheet of a workbook, or table of a database.

    Returns
    -------
    TableSchema
        ``ingest(url, dest, IngestOptions(layout=schema.layout()))`` takes it.

    Raises
    ------
    InputError
        If it is no table, or is empty.
    StoreError
        If it cannot be read.
    """
    place = location.as_url(url)
    location.local_path(place)  # refuses what no file can be called
    opened = open_file_table(place, SourceLayout(dialect=Dialect(table=table)))
    if opened is None:
        problem = f"{location.shown(place)} is no table."
        remedy = "Name arrays with --features and --labels; a schema is for files with columns."
        raise InputError(problem, remedy=remedy, code="source-format")
    delimiter, dialect, columns, sample = opened.look()
    if len(columns) > MOST_COLUMNS:  # before a schema is written, which later files would follow
        raise too_wide(location.shown(place))
    guesses = column_guess.guess_columns(columns, sample, dialect)
    if all(one.use == "drop" for one in guesses.values()):
        # Of nothing but keys and constants no one could learn; better all than nothing.
        guesses = {name: replace(one, use="variable") for name, one in guesses.items()}
    missing = column_guess.MISSING_MARKS if opened.has_text else ("",)
    shared = {name: getattr(dialect, name) for name in _SHARED}
    file = FileForm(delimiter, **shared, header=not dialect.names, missing=missing)
    return TableSchema(file, guesses)


def recall_layout(url: location.Place, names: Sequence[str]) -> SourceLayout:
    """The layout of a later file, from the names of the features that an earlier one became.

    For collections that no schema made. Of ``town=alpha`` the column `town` is spread.
    ``born year`` and ``pay missing`` are made from the columns `born` and `pay`. Of the file itself
    only the delimiter is looked up, and which columns are dates.

    Parameters
    ----------
    url
        As in `propose_schema`; arrays take their names as they are.
    names
        Of all features, in their order.

    Raises
    ------
    InputError, StoreError
        As in `propose_schema`.
    """
    if open_file_table(location.as_url(url), SourceLayout()) is None:
        return SourceLayout(features=tuple(names))
    looked = propose_schema(url)
    made = {name for name in names if name not in looked.columns}

    def find(end: str) -> tuple[str, ...]:
        """Columns of which a feature was made, whose name begins with both."""
        return tuple(n for n in looked.columns if any(one.startswith(n + end) for one in made))

    one_hot, calendar, marked = find("="), find(" year"), find(" missing")
    dates = {name for name, plan in looked.columns.items() if plan.kind == "date"}
    days = tuple(name for name in names if name in dates and name not in calendar)
    ends = [f"{name} {end}" for name in calendar for end in ("year", "month", "weekday")]
    ends += [f"{name} missing" for name in marked]
    ends += [name for name in made if name.startswith(tuple(f"{one}=" for one in one_hot))]
    return SourceLayout(
        features=tuple(name for name in names if name not in {*calendar, *days, *ends}),
        one_hot=one_hot,
        spread=tuple(names),
        dates=days,
        calendar=calendar,
        marked=marked,
        delimiter=looked.file.delimiter,
    )
