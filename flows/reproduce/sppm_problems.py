"""The data sets of Salamatian et al., SPPM, section 4.1, as joint distributions and codes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from privpipe.errors import InputError
from privpipe.protocols import FloatArray, IntArray

CENSUS_FEATURES = {
    "Age": "age",
    "Education": "education",
    "Marital status": "marital_status",
    "Occupation": "occupation",
    "Race": "race",
    "Gender": "sex",
    "Country": "native_country",
}
"""Rows of Table 1, and the columns of the Adult data."""

Population = Literal["first", "frequent", "all"]


def load_census(
    data: Path, population: Population, size: int = 300, split: str = "train"
) -> tuple[FloatArray, IntArray]:
    """Joint counts of income and profile (age in decades), and the profiles' codes.

    Parameters
    ----------
    data
        Folder with ``adult.csv.gz``.
    population
        "first": the first `size` records. "frequent": records of the `size` most frequent
        profiles, as the paper says. "all": every record.
    size
    split
        "train" or "test".

    Returns
    -------
    counts : (2, n_symbols)
    codes : (n_symbols, 7)
        Codes follow the sorted categories of the whole file, so that both splits agree.
    """
    table = pd.read_csv(data / "adult.csv.gz")
    table["age"] = table["age"] // 10
    columns = list(CENSUS_FEATURES.values())
    codes = np.stack([pd.factorize(table[c], sort=True)[0] for c in columns], axis=1)
    income = table["income"].str.contains(">").to_numpy().astype(np.int64)
    rows = table["split"].str.contains(split).to_numpy()
    codes, income = codes[rows], income[rows]
    if population == "first":
        codes, income = codes[:size], income[:size]
    counts, symbols = count_symbols(income, codes)
    if population == "frequent":
        stored = np.sort(np.argsort(-counts.sum(axis=0), kind="stable")[:size])
        counts, symbols = counts[:, stored], symbols[stored]
    return counts, symbols


def make_toy(n: int) -> tuple[FloatArray, IntArray]:
    """The synthetic data: symbols 1..n, private value "in the upper half", squared distance."""
    joint = np.zeros((2, n))
    joint[0, : n // 2], joint[1, n // 2 :] = 1.0, 1.0
    return joint / joint.sum(), np.arange(n)[:, None]


def load_movies(data: Path, n_preferred: int = 6) -> tuple[IntArray, IntArray]:
    """Gender and preferred genres of each user of MovieLens 1M, where it is at hand.

    Parameters
    ----------
    data
        Folder with ``ml-1m/users.dat``, ``movies.dat`` and ``ratings.dat``.
    n_preferred
        Bits set per user.

    Returns
    -------
    gender : (n_users,)
        1 for women.
    bits : (n_users, n_genres)
        1 for preferred genres.

    Raises
    ------
    InputError
        If the files are not there.

    Notes
    -----
    Departure: the paper extends the genres by tags that were never published; here the bits
    are MovieLens's own genres.
    """
    folder = data / "ml-1m"
    if not (folder / "ratings.dat").exists():
        raise InputError(
            "MovieLens 1M is not in the data folder.",
            remedy="Unpack it there as ml-1m/; its licence forbids passing it on.",
        )
    users = _read_movielens(folder, "users", ["user", "gender", "age", "job", "zip"])
    films = _read_movielens(folder, "movies", ["film", "title", "genres"]).set_index("film")
    ratings = _read_movielens(folder, "ratings", ["user", "film", "rating", "time"])
    genres = films["genres"].str.get_dummies("|")
    chosen = genres.loc[ratings["film"]].to_numpy()
    seen = pd.DataFrame(chosen, index=ratings["user"]).groupby(level=0).mean()
    preference = seen.to_numpy() / genres.sum().to_numpy()
    bits = np.zeros(preference.shape, np.int64)
    best = np.argsort(-preference, axis=1, kind="stable")[:, :n_preferred]
    np.put_along_axis(bits, best, 1, axis=1)
    gender = users.set_index("user").loc[seen.index, "gender"]
    return (gender == "F").to_numpy().astype(np.int64), bits


def _read_movielens(folder: Path, name: str, columns: list[str]) -> pd.DataFrame:
    path = folder / f"{name}.dat"
    return pd.read_csv(path, sep="::", engine="python", names=columns, encoding="latin-1")


def count_symbols(private: IntArray, codes: IntArray) -> tuple[FloatArray, IntArray]:
    """Joint counts of private values and of the records that are alike.

    Parameters
    ----------
    private : (n_records,)
        0 or 1.
    codes : (n_records, n_attributes)

    Returns
    -------
    counts : (2, n_symbols)
    symbols : (n_symbols, n_attributes)
    """
    symbols, inverse = np.unique(codes, axis=0, return_inverse=True)
    counts = np.zeros((2, len(symbols)))
    np.add.at(counts, (private, inverse.ravel()), 1)
    return counts, symbols
