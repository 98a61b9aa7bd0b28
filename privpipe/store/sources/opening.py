"""Open a source by what its name or its folder says it is: a walk over the table of formats."""

from dataclasses import replace

from privpipe.errors import InputError
from privpipe.store.access.location import local_path, shown
from privpipe.store.sources.formats import FORMATS, describe_formats, endings_of_files, find_format
from privpipe.store.sources.reading.files import list_files
from privpipe.store.sources.reading.recoding import bin_numbers, parse_bins, spread_texts
from privpipe.store.sources.reading.source import RecordSource, SourceLayout


def open_source(url: str, layout: SourceLayout, *, min_category_count: int = 1) -> RecordSource:
    """Open a file, folder or Zarr group as a source of records.

    Parameters
    ----------
    url
        Local path or fsspec URL, of one of the `FORMATS`.
    layout
        Which array or column is what.
    min_category_count
        Rarer categories of columns that become features are pooled.

    Raises
    ------
    InputError
        If the format is not known, or the content does not fit.
    OptionError
        If an option does not apply to the format, or names what is not there.
    StoreError
        If it cannot be read.
    """
    local_path(url)  # refuses a path that cannot be one
    # Outermost: its edges are chosen by numbers, which the source below must read as such.
    if layout.bins:
        bins = parse_bins(layout.bins)
        as_numbers = replace(layout, numeric=(*layout.numeric, *bins), bins=())
        source = open_source(url, as_numbers, min_category_count=min_category_count)
        return bin_numbers(source, bins)
    if layout.one_hot:
        as_text = (*layout.categorical, *layout.one_hot)
        source = _open(url, replace(layout, categorical=as_text, one_hot=()))
        return spread_texts(source, layout.one_hot, min_category_count)
    return _open(url, layout)


def _open(url: str, layout: SourceLayout) -> RecordSource:
    row = find_format(url)
    if row is not None and not row.of_files:
        return row.open(url, layout)
    files = list_files(url, endings_of_files())  # a folder is what its files are
    if files is None:
        raise InputError(
            f"The format of {shown(url)} is not known by its name.",
            remedy=f"Give one of: {describe_formats()}.",
            code="source-format",
        )
    return next(row for row in FORMATS if row.name == files.kind).open(files, layout)
