"""Twelve laws of (private value, profile) that promises about sampled records are tried on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from privpipe.protocols import Column, FloatArray, IntArray, ShardSchema
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping


@dataclass(frozen=True, eq=False)
class RecordLaw:
    """A joint law, (n_private, n_profiles), over a product of attributes."""

    joint: FloatArray
    codes: IntArray
    distortion: str
    budget: float

    def draw(self, n: int, rng: np.random.Generator) -> CountedShards:
        return CountedShards(self, rng.multinomial(n, self.joint.ravel()).reshape(self.joint.shape))

    def make_options(self, **changes: Any) -> PrivacyMappingOptions:
        """Of a fit to records drawn from it."""
        return PrivacyMappingOptions(
            attributes=tuple(f"a{k}" for k in range(self.codes.shape[1])),
            private=("private",),
            distortion=self.distortion,  # type: ignore[arg-type]
            distortion_budget=self.budget,
            **changes,
        )

    def tell(self, mapping: SparseMapping) -> tuple[float, float]:
        """True information, and true mean distortion, of a mapping that releases nearest."""
        symbols = mapping.find_symbols(self.codes)
        columns = mapping.mapping[:, symbols]
        masses = np.asarray((columns @ self.joint.T).T)
        product = masses.sum(axis=0) * masses.sum(axis=1)[:, None]
        used = masses > 0
        away = np.abs(mapping.codes[:, None, :] - self.codes[None]).astype(float)
        power = {"hamming": 0, "absolute": 1, "squared": 2}[self.distortion]
        distances = ((away > 0) * away**power).sum(axis=2)
        spent = float((columns.toarray() * distances * self.joint.sum(axis=0)).sum())
        return float((masses[used] * np.log(masses[used] / product[used])).sum()), spent


class CountedShards:
    """Shards that answer the one question a mapping asks: their counts."""

    def __init__(self, law: RecordLaw, table: IntArray) -> None:
        value, symbol = np.nonzero(table)
        keys = np.concatenate([law.codes[symbol], value[:, None]], axis=1)
        order = np.lexsort(keys.T[::-1])
        counts = table[value, symbol][order]
        self._counts = ProfileCounts(keys[order], counts, law.codes.shape[1], 0)
        names = [Column(f"a{k}", int(c.max()) + 1) for k, c in enumerate(law.codes.T)]
        self.schema = ShardSchema(
            0, confidential=(Column("private", len(law.joint)),), attributes=tuple(names)
        )
        self.n_records = int(counts.sum())

    def reduce(self, summarise: object) -> ProfileCounts:
        return self._counts

    def oracle(self, function: object, **resident: object) -> object:
        raise NotImplementedError


def make_grid(*sizes: int) -> IntArray:
    return np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), axis=-1).reshape(
        -1, len(sizes)
    )


def _law(
    mass: FloatArray, posterior: FloatArray, codes: IntArray, kind: str, budget: float
) -> RecordLaw:
    joint = (posterior / posterior.sum(axis=0)) * mass / mass.sum()
    return RecordLaw(joint, codes, kind, budget)


def make_laws() -> dict[str, RecordLaw]:
    """The laws by name; budgets are where information is left to tell."""
    rng = np.random.default_rng(19)
    small, middle, issue = make_grid(3, 2), make_grid(4, 3, 3), make_grid(6, 4, 4, 3)
    line = make_grid(16)

    def uneven(n: int) -> FloatArray:
        return 1 / np.arange(1, n + 1) ** 1.1

    def random(k: int, n: int, sharpness: float) -> FloatArray:
        return rng.dirichlet(np.full(k, sharpness), n).T

    slope = line[:, 0] / 15
    return {
        "independent": _law(np.ones(6), np.ones((2, 6)), small, "hamming", 0.2),
        "independent, many profiles": _law(uneven(288), np.ones((2, 288)), issue, "hamming", 0.3),
        "random": _law(rng.random(36), random(2, 36, 1.0), middle, "hamming", 0.3),
        "issue: 288 profiles": _law(rng.random(288), random(2, 288, 1.0), issue, "hamming", 0.3),
        "sharp": _law(uneven(36), random(2, 36, 0.1), middle, "hamming", 0.3),
        "a value is a profile": _law(np.ones(6), np.eye(6), small, "hamming", 0.2),
        "rare value": _law(
            uneven(36), np.stack([np.full(36, 0.99), 0.02 * rng.random(36)]), middle, "hamming", 0.1
        ),
        "five values": _law(uneven(36), random(5, 36, 0.7), middle, "hamming", 0.3),
        "nearly nothing to hide": _law(
            np.ones(36), 0.5 + 0.03 * rng.standard_normal((2, 36)), middle, "hamming", 0.1
        ),
        "ordered, squared": _law(
            uneven(16), np.stack([0.1 + slope, 1.1 - slope]), line, "squared", 2.0
        ),
        "ordered, absolute, three": _law(np.ones(16), random(3, 16, 2.0), line, "absolute", 0.5),
        "budget of perfect privacy": _law(uneven(6), random(2, 6, 1.0), small, "hamming", 5.0),
    }
