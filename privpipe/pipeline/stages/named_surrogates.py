"""Earlier releases of surrogates that a run names: two sets of exact coefficients are compared."""

from __future__ import annotations

from privpipe.numerics.regression.labels import name_targets
from privpipe.pipeline.runs.run import Run
from privpipe.store.releases.earlier_surrogates import EarlierSurrogates, open_earlier_surrogates


def find_named_surrogates(run: Run) -> tuple[EarlierSurrogates, ...]:
    """The releases named by ``[audit] earlier``, of records that overlap with those of the run.

    Raises
    ------
    StoreError, FormatError, IncompleteReleaseError
        If one cannot be read.
    OptionError
        If one is none of surrogates with the same columns.
    """
    schema = run.training.schema
    names = schema.feature_names or tuple(f"feature_{j}" for j in range(schema.n_features))
    return tuple(
        open_earlier_surrogates(
            url, feature_names=(*names, "bias"), response_names=name_targets(schema.desired)
        )
        for url in dict.fromkeys(run.options.audit.earlier)
    )
