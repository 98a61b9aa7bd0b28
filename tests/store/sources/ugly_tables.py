"""Fifty tables as people have them, each with what a careful person reads from it with pandas.

Each is made by a script, from the same records: an amount, a count, a town, a day, a flag, a postal
code. `careful` is the call of pandas that gets them; `edits` is what a reviewer of the schema
changes.
"""

from __future__ import annotations

import csv
import gzip
import sqlite3
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

N = 150
RNG = np.random.default_rng(36)
TRUTH = pd.DataFrame(
    {
        "amount": RNG.uniform(0.5, 9_000, N).round(2),
        "count": RNG.integers(0, 40, N),
        "town": RNG.choice(["Köln", "Bonn, Süd", "Ulm", 'Haus "Eck"'], N),
        "day": pd.Timestamp("2019-01-01") + pd.to_timedelta(RNG.integers(0, 1500, N), "D"),
        "flag": RNG.random(N) < 0.4,
        "zip": [f"{k:05d}" for k in RNG.choice([137, 1067, 50667, 89073, 53111], N)],
    }
)
PLAIN = TRUTH[["amount", "count", "town"]]


@dataclass(frozen=True)
class Table:
    """A table: its file, who writes it, what pandas gets, and what a reviewer changes."""

    file: str
    write: Callable[[Path], Any]
    careful: Callable[[Path], pd.DataFrame]
    edits: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs: str = ""


def text_of(frame: pd.DataFrame, **options: Any) -> str:
    return frame.to_csv(index=False, **options)


def written(text: str | bytes, encoding: str = "utf-8") -> Callable[[Path], Any]:
    raw = text if isinstance(text, bytes) else text.encode(encoding)
    return lambda path: path.write_bytes(raw)


def grouped(frame: pd.DataFrame, mark: str, decimal: str) -> pd.DataFrame:
    def write(value: float) -> str:
        return f"{value:,.2f}".translate(str.maketrans({",": mark, ".": decimal}))

    return frame.assign(amount=frame["amount"].map(write))


def dates(form: str) -> pd.DataFrame:
    return TRUTH[["amount", "day"]].assign(day=TRUTH["day"].dt.strftime(form))


def worded(true: str, false: str) -> pd.DataFrame:
    return TRUTH[["amount"]].assign(flag=TRUTH["flag"].map({True: true, False: false}))


def priced(form: str, mark: str, below: str = "") -> pd.DataFrame:
    """Amounts with a unit; where there is a form for those below zero, each third is."""
    texts = grouped(PLAIN, mark, ".,".replace(mark, ""))["amount"]
    forms = [below if below and k % 3 == 0 else form for k in range(N)]
    return PLAIN.assign(amount=[f.format(one) for f, one in zip(forms, texts, strict=True)])


def named_rows(mark: str) -> str:
    """As R's write.table: a first column of row names, which has no name itself."""
    plain = PLAIN.assign(town=PLAIN["town"].str.replace('[,"]', "", regex=True))
    plain.index = pd.Index([f"{k + 1}" for k in range(N)])
    rows = plain.to_csv(sep=mark, header=False, index_label=False, quoting=csv.QUOTE_NONNUMERIC)
    return mark.join(f'"{name}"' for name in plain) + "\n" + rows


def gaps(mark: str) -> str:
    frame = PLAIN.astype({"amount": object})
    frame.loc[::9, "amount"] = mark
    return text_of(frame)


def read(**options: Any) -> Callable[[Path], pd.DataFrame]:
    return lambda path: pd.read_csv(path, **{"dtype": {"zip": str}, **options})


def read_flags(true: str, false: str) -> Callable[[Path], pd.DataFrame]:
    return read(true_values=[true], false_values=[false])


def zipped(text: str, path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inner.csv", text)


def database(path: Path) -> None:
    connection = sqlite3.connect(path)
    PLAIN.to_sql("people", connection, index=False)
    connection.execute("CREATE TABLE other (a)")
    connection.commit()
    connection.close()


def duck(path: Path) -> None:
    import duckdb

    with duckdb.connect(str(path)) as connection:
        connection.register("frame", pa.Table.from_pandas(PLAIN, preserve_index=False))
        connection.execute("CREATE TABLE people AS SELECT * FROM frame")


def workbook(path: Path) -> None:
    from openpyxl import Workbook

    book = Workbook()
    book.active.title = "notes"
    book.active.append(["nothing", "here"])
    sheet = book.create_sheet("people")
    sheet.append(list(TRUTH.columns))
    for row in TRUTH.itertuples(index=False):
        sheet.append([v.to_pydatetime() if isinstance(v, pd.Timestamp) else v for v in row])
    book.save(path)


SEMI = text_of(PLAIN, sep=";", decimal=",")
COMMA = text_of(PLAIN)
NESTED = pa.table(
    {
        "amount": TRUTH["amount"],
        "who": [{"a": 1}] * N,
        "price": [Decimal(f"{v:.2f}") for v in TRUTH["amount"]],
        "town": pa.array(TRUTH["town"]).dictionary_encode(),
    }
)
HEADS = "amount;count;town\nEUR;pieces;\n"
MANY = pd.DataFrame(
    {"amount": RNG.normal(size=9_000).round(3), "area": [f"area {k % 3000}" for k in range(9_000)]}
)
BODY = SEMI.split("\n", 1)[1]
QUOTED = pd.DataFrame(
    {"amount": [1.5, 2.5] * 60, "said": ['He said "no; never", then\nleft', "x"] * 60}
)
SENTINEL = PLAIN.assign(count=np.where(np.arange(N) % 10 == 0, 999, TRUTH["count"]))
PERCENT = [f"{k}%" for k in TRUTH["count"]]
SIGNED = PLAIN.assign(amount=PLAIN["amount"] * np.where(np.arange(N) % 3 == 0, -1, 1))
CODES = pd.DataFrame({"amount": TRUTH["amount"], "part": RNG.choice(["1e5", "2e7", "300"], N)})
AMERICAN = read(parse_dates=["day"], date_format="%m/%d/%Y")
GERMAN = read(parse_dates=["day"], date_format="%d.%m.%Y")

TABLES: dict[str, Table] = {
    "plain": Table("t.csv", written(COMMA), read()),
    "semicolon, decimal comma": Table("t.csv", written(SEMI), read(sep=";", decimal=",")),
    "tabs": Table("t.tsv", written(text_of(PLAIN, sep="\t")), read(sep="\t")),
    "tabs, packed": Table(
        "t.tsv.gz",
        lambda path: path.write_bytes(gzip.compress(text_of(PLAIN, sep="\t").encode())),
        read(sep="\t"),
    ),
    "bars": Table("t.csv", written(text_of(PLAIN, sep="|")), read(sep="|")),
    "Latin-1": Table(
        "t.csv", written(SEMI, "latin-1"), read(sep=";", decimal=",", encoding="latin-1")
    ),
    "Windows": Table(
        "t.csv", written(COMMA.replace("Ulm", "Ulm – €"), "cp1252"), read(encoding="cp1252")
    ),
    "mark of UTF-8": Table("t.csv", written(COMMA, "utf-8-sig"), read(encoding="utf-8-sig")),
    "UTF-16": Table(
        "t.csv", written(text_of(PLAIN, sep="\t"), "utf-16"), read(sep="\t", encoding="utf-16")
    ),
    "UTF-16 without a mark": Table(
        "t.csv", written(COMMA, "utf-16-le"), read(encoding="utf-16-le")
    ),
    "quotes in quotes": Table("t.csv", written(text_of(QUOTED)), read()),
    "line ends of Windows": Table("t.csv", written(COMMA.replace("\n", "\r\n")), read()),
    "no header": Table(
        "t.csv",
        written(text_of(PLAIN, header=False)),
        read(header=None, names=["column_1", "column_2", "column_3"]),
    ),
    "two rows of header": Table(
        "t.csv",
        written(HEADS + BODY),
        read(sep=";", decimal=",", skiprows=2, names=["amount EUR", "count pieces", "town"]),
    ),
    "words before the names": Table(
        "t.csv",
        written("Export of today\nconfidential\n\n" + SEMI),
        read(sep=";", decimal=",", skiprows=3),
    ),
    "totals at the end": Table(
        "t.csv",
        written(SEMI + "Summe;123;\n"),
        read(sep=";", decimal=",", skipfooter=1, engine="python"),
    ),
    "rows counted at the end": Table(
        "t.csv",
        written(text_of(PLAIN, sep="|") + "(150 rows)\n"),
        read(sep="|", skipfooter=1, engine="python"),
    ),
    "1.234,56": Table(
        "t.csv",
        written(text_of(grouped(PLAIN, ".", ","), sep=";")),
        read(sep=";", decimal=",", thousands="."),
    ),
    "1,234.56 in quotes": Table(
        "t.csv", written(text_of(grouped(PLAIN, ",", "."))), read(thousands=",")
    ),
    "1 234,56": Table(
        "t.csv",
        written(text_of(grouped(PLAIN, " ", ","), sep=";")),
        read(sep=";", decimal=",", thousands=" "),
    ),
    "German dates": Table("t.csv", written(text_of(dates("%d.%m.%Y"))), GERMAN),
    "American dates": Table("t.csv", written(text_of(dates("%m/%d/%Y"))), AMERICAN),
    "ISO dates": Table("t.csv", written(text_of(dates("%Y-%m-%d"))), read(parse_dates=["day"])),
    "times": Table(
        "t.csv", written(text_of(dates("%Y-%m-%d %H:%M:%S"))), read(parse_dates=["day"])
    ),
    "00137": Table("t.csv", written(text_of(TRUTH[["amount", "zip"]])), read()),
    "1e5 as a code": Table("t.csv", written(text_of(CODES)), read(dtype={"part": str})),
    "missing as -": Table("t.csv", written(gaps("-")), read(na_values=["-"])),
    "missing as n.a.": Table("t.csv", written(gaps("n.a.")), read(na_values=["n.a."])),
    "missing as ?": Table("t.csv", written(gaps("?")), read(na_values=["?"])),
    "missing as 999": Table("t.csv", written(text_of(SENTINEL)), read(na_values={"count": [999]})),
    "yes and no": Table("t.csv", written(text_of(worded("yes", "no"))), read_flags("yes", "no")),
    "ja and nein": Table("t.csv", written(text_of(worded("Ja", "Nein"))), read_flags("Ja", "Nein")),
    "T and F": Table("t.csv", written(text_of(worded("T", "F"))), read_flags("T", "F")),
    "TRUE and FALSE": Table("t.csv", written(text_of(worded("TRUE", "FALSE"))), read()),
    "blanks after commas": Table(
        "t.data",
        written(text_of(PLAIN.assign(town="Ulm a")).replace(",", ", ")),
        read(skipinitialspace=True),
        {"town": {"use": "variable"}},
    ),
    "€ in names, % behind numbers": Table(
        "t.csv",
        written(text_of(PLAIN.rename(columns={"amount": "amount €"}).assign(count=PERCENT))),
        lambda path: pd.read_csv(path).assign(count=PLAIN["count"]),
    ),
    "1.234,56 €": Table(
        "t.csv", written(text_of(priced("{} €", "."), sep=";"), "cp1252"), lambda _: PLAIN
    ),
    "$1,234.56 and ($1,234.56)": Table(
        "t.csv", written(text_of(priced("${}", ",", "(${})"))), lambda _: SIGNED
    ),
    "(1,5) below zero": Table(
        "t.csv", written(text_of(priced("{}", ".", "({})"), sep=";")), lambda _: SIGNED
    ),
    "1.50- below zero": Table(
        "t.csv", written(text_of(priced("{}", ",", "{}-"), sep=";")), lambda _: SIGNED
    ),
    "row names of R": Table(
        "t.csv", written(named_rows(",")), lambda path: pd.read_csv(path).reset_index(drop=True)
    ),
    "blanks and row names of R": Table(
        "t.data",
        written(named_rows(" ")),
        lambda path: pd.read_csv(path, sep=" ").reset_index(drop=True),
    ),
    "remarks above": Table(
        "t.csv", written('# from Bonn, 5" wide, -\n# EUR, pieces, -\n' + COMMA), read(skiprows=2)
    ),
    "names in a remark": Table("t.csv", written("# of today\n#" + COMMA), read(skiprows=1)),
    "sep= for Excel": Table(
        "t.csv", written("sep=;\r\n" + SEMI), read(skiprows=1, sep=";", decimal=",")
    ),
    "3,000 categories": Table("t.csv", written(text_of(MANY)), read()),
    "workbook of two sheets": Table("t.xlsx", workbook, lambda _: TRUTH, needs="python_calamine"),
    "lines of JSON": Table(
        "t.jsonl",
        lambda path: PLAIN.to_json(path, orient="records", lines=True, force_ascii=False),
        lambda path: pd.read_json(path, lines=True),
    ),
    "one file in .zip": Table("t.zip", lambda path: zipped(COMMA, path), read()),
    "Feather": Table(
        "t.feather",
        lambda path: pyarrow.feather.write_feather(pa.Table.from_pandas(TRUTH), str(path)),
        pd.read_feather,
    ),
    "SQLite": Table("t.sqlite", database, lambda _: PLAIN),
    "DuckDB": Table("t.duckdb", duck, lambda _: PLAIN, needs="duckdb"),
    "nested, decimals, dictionaries": Table(
        "t.parquet",
        lambda path: pq.write_table(NESTED, path),
        lambda _: NESTED.drop_columns(["who"]).to_pandas().astype({"price": float, "town": str}),
    ),
}
"""By what is ugly about it."""

SHEETS = {"workbook of two sheets": "people", "SQLite": "people"}
"""Which of several tables is named."""


def damage(kind: str, raw: bytes) -> bytes:
    """A sister of a file: cut off in a row, without a column in the middle, or of flipped bytes."""
    half = len(raw) // 2
    if kind == "cut":
        return raw[: half + raw[half:].index(b"\n") + 3]
    if kind == "flipped":
        return raw[:half] + bytes(b ^ 0xFF for b in raw[half : half + 9]) + raw[half + 9 :]
    lines = raw.split(b"\n")
    middle = next(k for k in range(len(lines) // 2, len(lines)) if lines[k].count(b'"') in (0, 4))
    marks = b";\t|," if b"," in raw else b" "
    mark = max(marks, key=lambda one: lines[middle].count(bytes([one])))
    lines[middle] = lines[middle].rpartition(bytes([mark]))[0]
    return b"\n".join(lines)
