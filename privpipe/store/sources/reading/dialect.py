"""How a text of cells is written, found in a sample of the whole file: encoding, marks, first rows.

The delimiter is found by clevercsv (van den Burg et al. 2019, Wrangling messy CSV files). It
chooses the reading whose rows are most alike and whose cells look like values. DESIGN.md says what
else was tried.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from operator import length_hint

import pyarrow as pa

from privpipe.errors import InputError, SourceError
from privpipe.store.sources.reading import conversions, source

HEAD_BYTES, PIECE_BYTES, MOST_PIECES = 2**18, 2**16, 48
"""Of a sample: its beginning, and pieces from everywhere else."""

SNIFFED_CHARACTERS = 2**15
"""Text by which clevercsv chooses: .06 s however wide the table is."""

MARKS = [",", ";", "\t", "|"]
BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
TOTAL = re.compile(
    r"\W*(grand )?(total|sum|summe|gesamt\w*|insgesamt|somme|totale|suma)\b|\(\d+ \w+\)$", re.I
)
"""How a row begins that is no record, but a sum or a count of those above it."""

REMARKS = re.compile(r"(?:(?:#.*|sep=.)\r?\n)*")
"""Lines before the first row that are none."""

BLANKS = re.compile(r'"[^"\n]*"( "[^"\n]*")+\r?\n')

LEAST_REPEATED = 10
"""Cells of a column of text that distinguish its name from a record's cell."""

DOT = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?|[+-]?\d+\.\d+")
COMMA = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d+)?|[+-]?\d+,\d+")
GROUPED = re.compile(r"[+-]?\d{1,3}([., '\u00a0\u202f])\d{3}(\1\d{3})*([.,]\d+)?")
VALUE = re.compile(r"[+-]?[\d.,]+|\d{4}-\d\d-\d\d.*|\d{1,2}[./]\d{1,2}[./]\d{2,4}")
"""What is a value, and surely no name."""


@dataclass(frozen=True)
class TextSample:
    """Lines from all parts of a text.

    Parameters
    ----------
    head
        Its first lines.
    pieces
        Whole lines from further places, in order.
    tail
        Its last lines; empty where the head is the whole text.
    """

    head: str
    pieces: tuple[str, ...]
    tail: str

    @property
    def text(self) -> str:
        return "".join((self.head, *self.pieces, self.tail))


def take_bytes(file: pa.NativeFile) -> list[bytes]:
    """Pieces from all parts of a stream, in order: its head, others, its end.

    A stream that cannot be moved, such as a compressed one, is read once, in memory of the sample.
    """
    head = file.read(HEAD_BYTES)
    if file.seekable():
        last = max(HEAD_BYTES, file.size() - PIECE_BYTES)
        # Nothing twice: a key would have values that two records have.
        rest = range(HEAD_BYTES, last - PIECE_BYTES + 1, PIECE_BYTES)
        places = [rest[i] for i in range(0, len(rest), max(1, -(-len(rest) // MOST_PIECES)))]
        return [head, *(file.read_at(PIECE_BYTES, at) for at in places), file.read_at(2**16, last)]
    pieces, step, number, last_piece = list[bytes](), 1, 0, b""
    while piece := file.read(PIECE_BYTES):
        if number % step == 0:
            pieces.append(piece)
        if len(pieces) > MOST_PIECES:  # thinned as it grows: its length is not known
            pieces, step = pieces[::2], 2 * step
        number, last_piece = number + 1, (last_piece + piece)[-PIECE_BYTES:]
    return [head, *pieces[:-2], last_piece]  # which begins within the last but one


def find_encoding(head: bytes, pieces: list[bytes]) -> str:
    """Encoding of a text: by its mark, by its zeros, UTF-8 where it is that, else Windows' Latin.

    No library was better: charset-normalizer and chardet take 40 lines of German for Hungarian.
    """
    for mark, name in BOMS.items():
        if head.startswith(mark):
            return name
    if b"\0" in head[:200]:
        return "utf-16-le" if head[1:2] == b"\0" else "utf-16-be"
    # Pieces may begin and end within a character.
    whole = b"".join(
        re.sub(rb"^[\x80-\xbf]{0,3}|[\xc0-\xff][\x80-\xbf]{0,2}$", b"", p) for p in pieces
    )
    try:
        whole.decode()
    except UnicodeDecodeError:
        return "latin-1" if re.search(rb"[\x81\x8d\x8f\x90\x9d]", whole) else "cp1252"
    return "utf-8"


def take_sample(open_stream: Callable[[], pa.NativeFile]) -> tuple[str, TextSample]:
    """Encoding of a text, and lines from all parts of it."""
    with open_stream() as stream:
        raw = take_bytes(stream)
    encoding = find_encoding(raw[0], raw)
    if encoding.startswith("utf-16"):  # pieces would begin within a character
        with pa.transcoding_input_stream(open_stream(), encoding, "utf-8") as stream:
            raw = take_bytes(stream)
    read = "utf-8" if encoding.startswith("utf-16") else encoding
    head, *rest = (piece.decode(read, errors="replace").lstrip("\ufeff") for piece in raw)
    # Lines that are cut belong to no sample, but for the file's own last one.
    inner = tuple(piece.partition("\n")[2].rpartition("\n")[0] + "\n" for piece in rest[:-1])
    cut_head = head if len(raw[0]) < HEAD_BYTES else head.rpartition("\n")[0] + "\n"
    return encoding, TextSample(cut_head, inner, rest[-1].partition("\n")[2] if rest[-1] else "")


def sniff_dialect(
    open_stream: Callable[[], pa.NativeFile], where: str
) -> tuple[str, source.Dialect, TextSample]:
    """Delimiter of a text, how it is written otherwise, and a sample of it.

    Raises
    ------
    InputError
        If it is empty.
    SourceError
        If it is no text.
    """
    from clevercsv.detect import Detector

    encoding, sample = take_sample(open_stream)
    if not sample.head.strip():
        raise InputError(f"{where} is empty.", remedy="Give at least one record.", code="empty")
    if "\0" in sample.head:
        raise SourceError(f"{where} is no text.", remedy="Give its true format by its ending.")
    remarks = REMARKS.match(sample.head)[0]  # type: ignore[index]  # always matches
    # Where all lines begin so, they are the table: numbers of orders, or colours.
    remarks = remarks if sample.head[len(remarks) :].strip() else ""
    head = sample.head[len(remarks) :]
    # Blanks separate cells where all names are in quotes and nothing else can: as R writes them.
    marks = [" "] if BLANKS.match(head) else MARKS
    found = Detector().detect(head[:SNIFFED_CHARACTERS], delimiters=marks)
    delimiter = found.delimiter if found and found.delimiter in marks else ","
    before = remarks.count("\n")
    rows = [(n + before, row) for n, row in read_cells(head, delimiter, 2_000)]
    width = Counter(len(row) for _, row in rows[:200]).most_common(1)[0][0]
    first = next(i for i, (_, row) in enumerate(rows) if len(row) == width)
    above = rows[first - 1][1] if first else []
    has_values = any(map(_is_value, rows[first][1]))
    has_row_names = has_values and len(above) == width - 1 and not any(map(_is_value, above))
    if has_row_names:  # R writes them under no name of their own
        first -= 1
        rows[first] = (rows[first][0], ["", *above])
    elif has_values and not first and (remark := re.search(r"#(.*)\n\Z", remarks)):
        # The names may be in the last remark, as numpy writes them.
        for _, row in read_cells(remark[0], delimiter, 1):
            rows[:0] = [(before - 1, row)] * (len(row) == width)
    names, n_names = _find_names([row for _, row in rows[first:]])
    if n_names == 1 and not _is_header([row for _, row in rows[first:]]):
        raise InputError(
            f"The first row of {where} may be a record: in no column its cell is surely a name.",
            remedy="Put names into a first row of their own. If it has them, --drop one.",
            code="no-header",
        )
    trim = sum(cell != cell.strip() for _, row in rows[first:] for cell in row) > len(rows)
    # No single row of the text holds the names as they are to be.
    is_named = n_names != 1 or has_row_names or (trim and any(n != n.strip() for n in names))
    skipped = first + n_names if is_named else first
    decimal, thousands = find_number_signs(rows[first + n_names :], delimiter)
    dialect = source.Dialect(
        encoding=encoding,
        decimal=decimal,
        thousands=thousands,
        skip_first=rows[min(skipped, len(rows) - 1)][0],
        skip_last=_count_totals(sample.tail or sample.head, delimiter),
        names=tuple(name.strip() for name in names) if is_named else (),
        trim=trim,
        multiline=any("\n" in cell for _, row in rows[first:] for cell in row),
    )
    return delimiter, dialect, sample


def read_cells(text: str, delimiter: str, most: int) -> list[tuple[int, list[str]]]:
    """First rows that are not empty, each with the number of lines before it."""
    found, lines = list[tuple[int, list[str]]](), text.splitlines(keepends=True)
    left = iter(lines)
    before = 0
    for row in csv.reader(left, delimiter=delimiter):
        if any(row):
            found.append((before, row))
        before = len(lines) - length_hint(left)
        if len(found) == most:
            break
    return found


def _find_names(rows: list[list[str]]) -> tuple[tuple[str, ...], int]:
    """Names of the columns, and how many rows hold them: none, one, or a second one of units."""
    is_value = [[_is_value(cell) for cell in row] for row in rows[:50]]
    width = len(rows[0])
    below = [row for row in is_value[2:] if len(row) == width] or is_value[1:] or is_value
    numbers = [sum(row[j] for row in below) > 0.7 * len(below) for j in range(width)]
    if not any(numbers):  # nothing but text: the first row is taken for names, as all readers do
        return tuple(rows[0]), 1
    # A name may be a year, so columns of numbers must all be headed by one to have no names.
    headed = [row[j] for row in is_value[:1] for j in range(width) if numbers[j]]
    if all(headed) and not _counts(rows[0]):
        return tuple(f"column_{j}" for j in range(1, width + 1)), 0
    second = rows[1] if len(rows) > 2 and len(rows[1]) == width else []
    is_second = second and not any(is_value[1]) and sum(map(bool, second)) > 0
    if is_second and all(not is_value[1][j] for j in range(width) if numbers[j]):
        joined = (
            " ".join(filter(None, (a.strip(), b.strip())))
            for a, b in zip(rows[0], second, strict=True)
        )
        if any(second[j].strip() for j in range(width) if numbers[j]):
            return tuple(joined), 2
    return tuple(rows[0]), 1


def _is_header(rows: list[list[str]]) -> bool:
    """Whether something distinguishes the first row from a record.

    A cell that is no value heads a column of values. Or columns whose cells repeat are headed by
    cells that do not occur in them, and none by one that does.
    """
    differ = list[bool]()
    for name, *cells in zip(*(row for row in rows if len(row) == len(rows[0])), strict=True):
        if not _is_value(name) and sum(map(_is_value, cells)) > len(cells) / 2:
            return True
        if len(cells) >= LEAST_REPEATED and 2 * len(set(cells)) <= len(cells):
            differ.append(name not in cells)
    return bool(differ) and all(differ)


def _bare(cell: str) -> str:
    """A number without its unit and sign."""
    return conversions.UNIT.sub("", cell).strip("()+- ")


def _is_value(cell: str) -> bool:
    return bool(VALUE.fullmatch(_bare(cell)))


def _counts(names: list[str]) -> bool:
    return any(names == [str(k + j) for j in range(len(names))] for k in (0, 1))


def find_number_signs(rows: list[tuple[int, list[str]]], delimiter: str) -> tuple[str, str]:
    """Decimal and thousands sign: what most cells show that show only one of the two."""
    cells = [_bare(cell) for _, row in rows for cell in row]
    # 1.234 alone may be either; by itself it is decided by the cells that are not ambiguous.
    votes = Counter[str]()
    for cell in cells:
        dot, comma = DOT.fullmatch(cell), COMMA.fullmatch(cell)
        if bool(dot) != bool(comma):
            votes["." if dot else ","] += 1
    decimal = "," if votes[","] > votes["."] and delimiter != "," else "."
    grouped = Counter(m[1] for cell in cells if (m := GROUPED.fullmatch(cell)) and m[1] != decimal)
    return decimal, grouped.most_common(1)[0][0] if grouped else ""


def _count_totals(text: str, delimiter: str) -> int:
    """Lines at the end from the first that begins a sum or count; a cut row is none."""
    last = text.splitlines()[:-7:-1]
    marked = [i for i, line in enumerate(last, 1) if TOTAL.match(line.strip(f'{delimiter}" \t'))]
    return max(marked, default=0)
