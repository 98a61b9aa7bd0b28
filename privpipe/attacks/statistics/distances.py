"""Distances between many records and many others, a bounded block at a time."""

from collections.abc import Iterator

import numpy as np

from privpipe.protocols import FloatArray, IntArray

_PROBES_AT_ONCE = 1024
_GALLERY_AT_ONCE = 8192
_TIE = 1e-9
"""Squared distances closer than this share of the squared lengths are ties."""


def measure_ranks(
    probes: FloatArray, gallery: FloatArray, match: IntArray, seed: int = 0
) -> IntArray:
    """Rank of each probe's own entry among all of the gallery by distance; 0 is nearest.

    Parameters
    ----------
    probes : (n_probes, n_features)
        Records to look up.
    gallery : (n_gallery, n_features)
        Records to look among.
    match : (n_probes,)
        Row of the gallery that belongs to each probe.
    seed
        Seed of the order among ties, so that identical entries are found by chance only.

    Returns
    -------
    ranks : (n_probes,)
        Number of entries nearer than the probe's own.

    Notes
    -----
    Holds one block of 1,024 by 8,192 squared distances (64 MiB) at a time.
    """
    nearer, tied = np.zeros(len(probes), np.int64), np.zeros(len(probes), np.int64)
    length = np.einsum("ij,ij->i", gallery, gallery, dtype=np.float64)
    for rows in _blocks(len(probes), _PROBES_AT_ONCE):
        p = probes[rows].astype(np.float64)
        p_length = np.einsum("ij,ij->i", p, p)
        mine = gallery[match[rows]].astype(np.float64)
        reference = p_length + length[match[rows]] - 2 * np.einsum("ij,ij->i", p, mine)
        # Expanded squares lose digits: equal entries differ by rounding, and would be ranked by it.
        margin = _TIE * (p_length + length[match[rows]])
        for cols in _blocks(len(gallery), _GALLERY_AT_ONCE):
            d = p_length[:, None] + length[cols] - 2 * (p @ gallery[cols].T.astype(np.float64))
            nearer[rows] += np.count_nonzero(d < (reference - margin)[:, None], axis=1)
            tied[rows] += np.count_nonzero(
                np.abs(d - reference[:, None]) <= margin[:, None], axis=1
            )
    # The probe's own entry is among the ties.
    return nearer + np.random.default_rng(seed).integers(0, np.maximum(tied, 1))


def measure_nearest(probes: FloatArray, gallery: FloatArray) -> FloatArray:
    """Euclidean distance of each probe to the nearest entry of the gallery, (n_probes,).

    >>> measure_nearest(np.array([[0.0, 1.0]]), np.array([[0.0, 3.0], [5.0, 1.0]]))
    array([2.])
    """
    from sklearn.neighbors import NearestNeighbors  # slow to import, and few attacks need it

    model = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(gallery)
    at = model.kneighbors(probes, return_distance=False)[:, 0]
    # The difference itself holds the digits that the expanded square loses near zero.
    return np.asarray(np.linalg.norm(probes.astype(np.float64) - gallery[at], axis=1))


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
