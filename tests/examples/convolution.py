"""A filter of one's own: a small convolution on raw motion windows of three axes."""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


class Convolution:
    """Kernels over all axes; what is released is the mean of each kernel's squared answers."""

    def __init__(self, n_features, kernels=4, width=8, axes=3):
        self.axes, self.width, self.n_outputs = axes, width, kernels
        self.shape = (axes, n_features // axes)  # axis by axis, a window's samples in time

    def start(self, rng):
        reach = 1 / np.sqrt(self.axes * self.width)
        return {
            "kernels": reach * rng.standard_normal((self.axes * self.width, self.n_outputs)),
            "bias": np.zeros(self.n_outputs),
        }

    def windows(self, x):
        found = sliding_window_view(x.reshape(-1, *self.shape), self.width, axis=2)
        return found.transpose(0, 2, 1, 3).reshape(len(x), -1, self.axes * self.width)

    def apply(self, parameters, x):
        answers = self.windows(x) @ parameters["kernels"] + parameters["bias"]
        return (answers**2).mean(axis=1)

    def vjp(self, parameters, x, dz):
        windows = self.windows(x)
        answers = windows @ parameters["kernels"] + parameters["bias"]
        slopes = 2 * answers * dz[:, None, :] / answers.shape[1]
        kernels = np.einsum("nti,ntk->ik", windows, slopes, optimize=True)
        return {"kernels": kernels, "bias": slopes.sum(axis=(0, 1))}
