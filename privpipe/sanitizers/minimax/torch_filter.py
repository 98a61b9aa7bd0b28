"""A module of PyTorch as a declared filter: weights as arrays, vjp by autograd. Extra ``torch``."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from privpipe.errors import OptionError
from privpipe.protocols import FloatArray


class TorchFilter:
    """A ``torch.nn.Module`` in double precision, on a GPU where there is one.

    Only parameters are stored. A module with buffers, such as batch normalisation, remembers what
    no artifact holds, and lets records of a batch change one another.

    Parameters
    ----------
    kind
        Makes the module, with weights as its constructor draws them.
    n_features
        Features of a record.
    **settings
        Further arguments of the constructor.
    """

    def __init__(self, kind: Callable[..., Any], n_features: int, **settings: Any) -> None:
        self._make = partial(kind, n_features, **settings)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._module = self._draw(0)
        held = [name for name, _ in self._module.named_buffers()]
        if held:
            problem = f"The module has buffers ({', '.join(held[:4])}), which are not stored."
            remedy = "Use layers with parameters alone; LayerNorm instead of BatchNorm."
            raise OptionError(problem, remedy=remedy, code="filter-class")
        with torch.no_grad():
            self.n_outputs = int(self._module(self._to_torch(np.zeros((2, n_features)))).shape[1])

    def start(self, rng: np.random.Generator) -> Mapping[str, FloatArray]:
        """Weights as the constructor draws them, from a seed of `rng`."""
        drawn = self._draw(int(rng.integers(2**31)))
        return {name: _to_numpy(value) for name, value in drawn.named_parameters()}

    def apply(self, parameters: Mapping[str, FloatArray], x: FloatArray) -> FloatArray:
        """Filter records."""
        with torch.no_grad():
            weights = {name: self._to_torch(value) for name, value in parameters.items()}
            return _to_numpy(self._call(weights, x))

    def vjp(
        self, parameters: Mapping[str, FloatArray], x: FloatArray, dz: FloatArray
    ) -> Mapping[str, FloatArray]:
        """Gradient of ``sum(dz * z)``; zero of a parameter that is not used."""
        weights = {name: self._to_torch(one).requires_grad_() for name, one in parameters.items()}
        # A parameter that no output uses has a slope of zero instead of none.
        at = self._call(weights, x), list(weights.values()), self._to_torch(dz)
        slopes = torch.autograd.grad(*at, materialize_grads=True)
        return {name: _to_numpy(slope) for name, slope in zip(weights, slopes, strict=True)}

    def _call(self, weights: dict[str, Any], x: FloatArray) -> Any:
        return torch.func.functional_call(self._module, weights, (self._to_torch(x),))

    def _draw(self, seed: int) -> Any:
        # Constructors draw from torch's global generator, which is the user's: it is left as it
        # was.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            # Evaluation mode: dropout would draw in `apply`.
            return self._make().double().eval().to(self._device)

    def _to_torch(self, value: FloatArray) -> Any:
        # A copy: torch takes neither read-only arrays nor negative strides.
        return torch.tensor(np.array(value, np.float64), device=self._device)


def _to_numpy(value: Any) -> FloatArray:
    return np.array(value.detach().cpu().numpy(), np.float64)
