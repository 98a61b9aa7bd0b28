"""ARFF: scipy's reader as the oracle, Mulan's lists of labels."""

from __future__ import annotations

import io
from functools import reduce

import fsspec
import numpy as np
import pytest
from scipy.io import arff

from privpipe.errors import FormatError, InputError, OptionError
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.arff import read_arff_header
from privpipe.store.sources.reading.files import read_labels
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import read_collection

HEADER = """% A comment
@RELATION 'some things'

@attribute plain NUMERIC
@Attribute 'two words' real
@ATTRIBUTE "it's" integer
@attribute kind { red, 'light blue', "a,b" }
@attribute flag {0,1}
@data
"""

MULAN = """<?xml version="1.0" encoding="utf-8"?>
<labels xmlns="http://mulan.sourceforge.net/labels">
<label name="flag"><label name="kind"/></label></labels>"""


def ingest_text(tmp_path, text, **layout):
    path = tmp_path / "t.arff"
    path.write_text(text, errors="surrogateescape")
    dest = tmp_path / "c.zarr"
    schema = ingest(str(path), str(dest), IngestOptions(layout=SourceLayout(**layout)))
    return schema, read_collection(dest)


def test_read_arff_header__agrees_with_scipy():
    header = read_arff_header(io.BytesIO(HEADER.encode()), "t")
    meta = arff.loadarff(io.StringIO(HEADER.replace('"it\'s"', "its")))[1]
    assert [a.name for a in header.attributes] == [n.replace("its", "it's") for n in meta.names()]
    assert [a.kind for a in header.attributes] == meta.types()
    values = [meta[name][1] or () for name in meta.names()]
    assert [a.values for a in header.attributes[:3]] == values[:3]
    assert header.attributes[3].values == ("red", "light blue", "a,b")
    assert (header.n_lines, header.n_bytes) == (9, len(HEADER))


def test_ingest__agrees_with_scipy(tmp_path):
    text = HEADER + "1,2.5,3,red,0\n% in between\n\n-1e3,?,7,'light blue',1\n4, 5 ,6,red,?\n"
    path = tmp_path / "t.arff"
    # scipy does not understand quotes in the data.
    plain = {'"it\'s"': "its", '"a,b"': "green", "'light blue'": "light"}
    path.write_text(reduce(lambda whole, item: whole.replace(*item), plain.items(), text))
    data = arff.loadarff(str(path))[0]
    _, found = ingest_text(tmp_path, text, labels=("kind", "flag"))
    oracle = np.column_stack([data[name] for name in data.dtype.names[:3]])
    np.testing.assert_array_equal(found["features"], oracle)
    assert found["kind"] == ["red", "light blue", "red"]
    assert found["flag"] == ["0", "1", None]


def test_ingest__labels_come_from_mulans_list(tmp_path):
    (tmp_path / "t.xml").write_text(MULAN)
    schema, found = ingest_text(tmp_path, HEADER + "1,2,3,red,0\n4,5,6,'a,b',1\n")
    assert schema.feature_names == ("plain", "two words", "it's")
    assert found["kind"] == ["red", "a,b"]
    assert found["flag"] == ["0", "1"]


def test_ingest__a_label_list_that_does_not_fit_is_told(tmp_path):
    (tmp_path / "t.xml").write_text(MULAN.replace("kind", "kin"))
    with pytest.raises(OptionError, match="no column 'kin', did you mean 'kind'"):
        ingest_text(tmp_path, HEADER + "1,2,3,red,0\n")
    (tmp_path / "t.xml").write_text("<labels><lab")
    with pytest.raises(FormatError, match="not a list of labels"):
        ingest_text(tmp_path, HEADER + "1,2,3,red,0\n")
    (tmp_path / "t.xml").unlink()
    (tmp_path / "t.xml").mkdir()
    with pytest.raises(FormatError, match=r"t\.xml cannot be read.*Give Mulan's XML"):
        ingest_text(tmp_path, HEADER + "1,2,3,red,0\n")


def test_read_labels__needs_labels(tmp_path):
    (tmp_path / "x.xml").write_text("<labels/>")
    with pytest.raises(FormatError, match="not a list of labels"):
        read_labels(*fsspec.core.url_to_fs(str(tmp_path / "x.xml")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "1,2,3,secret,0\n", "1 records hold an undeclared value of 'kind'"),
        (HEADER + "1,2,3,red\n", "row 10 has 4 cells instead of 5"),
        (HEADER + "secret,2,3,red,0\n", "'plain' that is not a number"),
        (HEADER + "% c\n\n{0 secret}\n", r"sparse rows, which are not read\..*\.csv"),
        (HEADER.replace("real", "secretly"), "line 5 declares an attribute of a type"),
        (HEADER.replace("@data\n", ""), "no @data line"),
        ("@relation x\n@attribute\n@data\n", "line 2 is not a complete @attribute"),
        ("@relation x\n@data\n1\n", "declares no attributes"),
        (HEADER.replace("real", "real % secr\udcf6t"), "line 5 is not text in UTF-8"),
    ],
)
def test_ingest__a_bad_file_is_told_without_its_cells(tmp_path, text, message):
    with pytest.raises((InputError, FormatError), match=message) as caught:
        ingest_text(tmp_path, text, labels=("kind", "flag"))
    assert "secret" not in f"{caught.value} {caught.value.__context__!r}"


def test_ingest__text_attributes_are_variables(tmp_path):
    head = "@relation r\n@attribute name string\n@attribute x numeric\n@data\n"
    _, found = ingest_text(tmp_path, head + '"it\'s, so",1\nplain,2\n', labels=("name",))
    assert found["name"] == ["it's, so", "plain"]
    (tmp_path / "again").mkdir()
    with pytest.raises(InputError, match="holds text in name"):
        ingest_text(tmp_path / "again", head + "a,1\n")


def test_ingest__comments_are_passed_over_wherever_a_piece_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("privpipe.store.sources.reading.delimited.BUFFER_BYTES", 7)
    rows = "".join(f"{i},2,3,red,0\n  % not, a, record\n" for i in range(500))
    _, found = ingest_text(tmp_path, HEADER + rows + "% without an end", labels=("kind", "flag"))
    np.testing.assert_array_equal(found["features"][:, 0], np.arange(500.0))
