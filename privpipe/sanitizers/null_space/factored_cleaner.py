"""A factored release: the few coordinates of each record, and the basis to make records of them.

``x~ = centre + D b~`` is one to one, so coordinates and basis say exactly what the records say, in
a small share of their bytes (Xu et al. 2017, Figure 2, in low-rank form).
"""

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from privpipe.described import described, facts_of_map
from privpipe.errors import OptionError
from privpipe.numerics.null_space.cleaning import CleanedBlock, clean_block, reconstruct_records
from privpipe.protocols import FloatArray, Guarantee
from privpipe.sanitizers.null_space.linear_cleaner import LinearCleaner, TargetRelease


@described(facts_of_map)
@dataclass(frozen=True, eq=False)
class FactoredCleaner(TargetRelease):
    """Releases the retained coordinates instead of the cleaned record.

    They too are a function of the desired prediction on a grid alone, and readers lift them in a
    fixed order: the same coordinates make the same bytes, alone or in a block.

    For the other fields see `LinearCleaner`.

    Parameters
    ----------
    released_dtype
        Dtype of the records made of the coordinates, "float32" or "float64": the rounding
        margin is for them. Coordinates are float64 always.
    source_kind, source_theorem
        Of the cleaner it was made from.

    Examples
    --------
    >>> from privpipe import NullSpaceCleaner
    >>> cleaner = NullSpaceCleaner.from_predictor(np.array([[1.0], [-1.0]]), utility_budget=0)
    >>> factored = FactoredCleaner.of(cleaner, "float64")
    >>> coordinates = factored.apply(np.array([[3.0, 1.0], [5.0, 1.0]]))
    >>> coordinates.shape, factored.reconstruct(coordinates).round(12).tolist()
    ((2, 1), [[1.0, -1.0], [2.0, -2.0]])
    """

    kind: ClassVar[str] = "factored_cleaner"
    keeps_features: ClassVar[bool] = False
    theorem: ClassVar[str] = ""

    _: KW_ONLY
    released_dtype: str
    source_kind: str
    source_theorem: str

    @classmethod
    def of(cls, cleaner: LinearCleaner, released_dtype: npt.DTypeLike) -> Self:
        """The factored form of a cleaner.

        Parameters
        ----------
        cleaner
            Algorithm 1 or 2; not the printed form, which is no projection.
        released_dtype
            Dtype of the records that readers will make.

        Raises
        ------
        OptionError
            If the cleaner or the dtype has no factored form.
        """
        dtype = np.dtype(released_dtype)
        if cleaner.rule == "printed" or dtype not in (np.float32, np.float64):
            raise OptionError(
                f"There is no factored release of {cleaner.kind} in {dtype}.",
                remedy="Use float32 or float64 and any cleaner but the printed one.",
            )
        shared = {item.name: getattr(cleaner, item.name) for item in fields(LinearCleaner)}
        return cls(
            **shared,
            released_dtype=dtype.name,
            source_kind=cleaner.kind,
            source_theorem=cleaner.theorem,
        )

    @property
    def n_features_out(self) -> int:
        return self.rank

    @property
    def guarantee(self) -> Guarantee:
        """That of the cleaner, for records made by `reconstruct`."""
        promise = super().guarantee
        return replace(
            promise,
            theorem=self.source_theorem + promise.theorem,
            assumptions=f"For records made of the coordinates in {self.released_dtype}.",
        )

    def reconstruct(self, coordinates: npt.ArrayLike) -> FloatArray:
        """Make records of released coordinates.

        Parameters
        ----------
        coordinates : (n_records, rank)

        Returns
        -------
        released : (n_records, n_features_cleaned), in `released_dtype`
        """
        return reconstruct_records(
            np.asarray(coordinates, np.float64), self.lift, self.centre, self.released_dtype
        )

    def predict(self, released: npt.ArrayLike) -> FloatArray:
        """Desired prediction of released coordinates, (n_records, n_desired)."""
        return super().predict(self.reconstruct(released))

    def release_target(self, values: FloatArray, dtype: npt.DTypeLike) -> FloatArray:
        """See `TargetRelease`; records as readers make them of the coordinates."""
        form = self._form(np.dtype(self.released_dtype))
        n = form.n_predictions
        alone = replace(form, predictor=np.eye(n), weights=np.ones(n))
        cleaned = clean_block(
            np.asarray(values, np.float64), alone, self.released_dtype, lifted=False
        )
        return self.reconstruct(cleaned.released)

    def _clean(
        self, x: FloatArray, dtype: np.dtype[Any], *, lifted: bool, out: FloatArray | None = None
    ) -> CleanedBlock:
        del lifted, out  # coordinates are few
        # The margin is for the records that readers will make, in their dtype.
        dtype = np.dtype(self.released_dtype)
        return clean_block(x, self._form(dtype), dtype, lifted=False)
