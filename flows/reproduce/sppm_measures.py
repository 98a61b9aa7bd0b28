"""What the figures of Salamatian et al., SPPM, measure on a mapping.

Exactly, where attackers know the whole released distribution, which is the most that any number
of records can teach them; and by attackers that train on records drawn and released.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Column, FloatArray, IntArray
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping


def release_counts(mapping: SparseMapping, counts: FloatArray) -> FloatArray:
    """Expected counts of private value and released symbol, (n_private, n_symbols)."""
    return np.asarray((mapping.mapping @ counts.T).T)


def correct_information(masses: FloatArray, n_records: float) -> float:
    """Information in bits less the plug-in's bias, (|A|-1)(|B|-1)/(2N) nats, not below 0.

    Parameters
    ----------
    masses : (n_private, n_symbols)
    n_records
        Records the distribution was counted on.
    """
    symbols, private = (masses.sum(axis=0) > 0).sum(), (masses.sum(axis=1) > 0).sum()
    nats = measure_information((masses / masses.sum()).T)
    bias = float((symbols - 1) * (private - 1)) / (2 * n_records)
    return max(0.0, nats - bias) / float(np.log(2))


def measure_features(masses: FloatArray, codes: IntArray) -> FloatArray:
    """Information of the private value and each attribute alone, bits, (n_attributes,)."""
    tables = (_by_category(masses, column)[0] for column in codes.T)
    return np.array([measure_information((t / t.sum()).T) / float(np.log(2)) for t in tables])


def naive_bayes_scores(masses: FloatArray, codes: IntArray) -> FloatArray:
    """Log-odds of private value 1 by naive Bayes on the attributes, (n_symbols,)."""
    total = masses.sum(axis=1, keepdims=True)
    score = np.full(masses.shape[1], float(np.log(total[1, 0] / total[0, 0])))
    for column in codes.T:
        table, category = _by_category(masses, column)
        share = (table + 1e-9) / (total + 1e-9 * table.shape[1])
        score += np.log(share[1] / share[0])[category]
    return score


def _by_category(masses: FloatArray, column: IntArray) -> tuple[FloatArray, IntArray]:
    values, inverse = np.unique(column, return_inverse=True)
    category = inverse.ravel()
    rows = [np.bincount(category, row, len(values)) for row in masses]
    return np.asarray(np.stack(rows), dtype=np.float64), category


def logistic_scores(masses: FloatArray, codes: IntArray) -> FloatArray:
    """Log-odds by logistic regression on the attributes' indicators, (n_symbols,)."""
    indicators = np.concatenate(
        [(column[:, None] == np.unique(column)).astype(float) for column in codes.T], axis=1
    )
    weights = np.concatenate([masses[0], masses[1]])
    used = weights > 0
    model = LogisticRegression(C=100.0, max_iter=2000)
    model.fit(
        np.concatenate([indicators, indicators])[used],
        np.repeat([0, 1], len(codes))[used],
        sample_weight=weights[used] * (used.sum() / weights.sum()),
    )
    return np.asarray(model.decision_function(indicators))


def trace_roc(scores: FloatArray, masses: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """False and true positive rates as the threshold falls, and the area under them."""
    _, inverse = np.unique(-scores, return_inverse=True)
    share = masses / masses.sum(axis=1, keepdims=True)
    steps = [np.bincount(inverse.ravel(), row) for row in share]
    false, true = (np.concatenate([[0.0], np.cumsum(step)]) for step in steps)
    return false, true, float(np.trapezoid(true, false))


def attack_drawn_records(
    mapping: SparseMapping, counts: FloatArray, n_records: int, seed: int
) -> dict[str, float]:
    """Area under the ROC curve of attackers that train on released records, by attacker.

    Parameters
    ----------
    mapping
    counts : (2, n_symbols)
        Records are drawn from it, with replacement.
    n_records
        To draw; attackers are judged on those they did not train on.
    seed
        Of the records, the release and the attackers.
    """
    random = np.random.default_rng(seed)
    cells = random.choice(counts.size, n_records, p=(counts / counts.sum()).ravel())
    private, symbols = np.divmod(cells, counts.shape[1])
    stream = KeyedStream(random.bytes(32), partition="drawn", first_record=0, n_records=n_records)
    # Categories are counted from 0 without gaps: a subset of a file's may lack some.
    codes = np.stack([np.unique(c, return_inverse=True)[1].ravel() for c in mapping.codes.T], 1)
    released = codes[mapping.find_symbols(mapping.apply(mapping.codes[symbols], stream))]
    columns = [Column(f"attribute {k}", int(c.max()) + 1) for k, c in enumerate(codes.T)]
    options = AttackOptions(adversaries=("naive_bayes", "logistic"), decides=("auc",), seed=seed)
    report = measure_attacks(released, private, features=columns, options=options)
    rows = report.table[(report.table["score"] == "auc") & (report.table["source"] == "released")]
    return dict(zip(rows["adversary"], rows["estimate"].astype(float), strict=True))


def measure_neighbours(
    mapping: SparseMapping, distances: FloatArray, nearest: int
) -> tuple[FloatArray, FloatArray]:
    """Mean probability of the k-th nearest symbol over originals, and its standard error.

    Parameters
    ----------
    mapping
    distances : (n_symbols, n_symbols)
    nearest
        How many neighbours; k = 0 is the symbol itself.
    """
    order = np.argsort(distances, axis=0, kind="stable")[:nearest]
    probability = np.take_along_axis(mapping.mapping.toarray(), order, axis=0)
    return probability.mean(axis=1), probability.std(axis=1) / np.sqrt(probability.shape[1])
