"""A module of PyTorch as a declared filter: weights as arrays, vjp by autograd. Extra ``torch``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from privpipe.errors import OptionError
from privpipe.protocols import FloatArray


class TorchFilter:
    """A ``torch.nn.Module`` in double precision, on a GPU where there is one.

    Only parameters are stored: a module with buffers, such as batch normalisation, remembers what
    no artifact holds, and lets records of a batch change one another.

    Parameters
    ----------
    make
        Makes the module, with weights as its constructor draws them.
    n_features
        Features of a record.
    """

    def __init__(self, make: Callable[[], Any], n_features: int) -> None:
        self._make = make
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._module = self._draw(0)
        held = [name for name, _ in self._module.named_buffers()]
        if held:
            raise OptionError(
                f"The module has buffers ({', '.join(held[:4])}), which are not stored.",
                remedy="Use layers with parameters alone; LayerNorm instead of BatchNorm.",
                code="filter-class",
            )
        zeros = torch.zeros((2, n_features), dtype=torch.float64, device=self._device)
        with torch.no_grad():
            self.n_outputs = int(self._module(zeros).shape[1])

    def start(self, rng: np.random.Generator) -> Mapping[str, FloatArray]:
        """Weights as the constructor draws them, from a seed of `rng`."""
        drawn = self._draw(int(rng.integers(2**31)))
        return {name: _to_numpy(value) for name, value in drawn.named_parameters()}

    def apply(self, parameters: Mapping[str, FloatArray], x: FloatArray) -> FloatArray:
        """Filter records."""
        with torch.no_grad():
            return _to_numpy(self._call(self._to_torch(parameters, False), x))

    def vjp(
        self, parameters: Mapping[str, FloatArray], x: FloatArray, dz: FloatArray
    ) -> Mapping[str, FloatArray]:
        """Gradient of ``sum(dz * z)``; zero of a parameter that is not used."""
        weights = self._to_torch(parameters, True)
        z = self._call(weights, x)
        above = torch.as_tensor(np.ascontiguousarray(dz), dtype=z.dtype, device=z.device)
        found = torch.autograd.grad(z, list(weights.values()), above, allow_unused=True)
        return {
            name: np.zeros(value.shape) if slope is None else _to_numpy(slope)
            for (name, value), slope in zip(weights.items(), found, strict=True)
        }

    def _call(self, weights: dict[str, Any], x: FloatArray) -> Any:
        rows = torch.as_tensor(np.array(x, np.float64), device=self._device)
        return torch.func.functional_call(self._module, weights, (rows,))

    def _draw(self, seed: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._make().double().eval().to(self._device)

    def _to_torch(self, parameters: Mapping[str, FloatArray], needs_slope: bool) -> dict[str, Any]:
        return {
            name: torch.tensor(
                np.asarray(value, np.float64), device=self._device, requires_grad=needs_slope
            )
            for name, value in parameters.items()
        }


def _to_numpy(value: Any) -> FloatArray:
    return np.array(value.detach().cpu().numpy(), np.float64)
