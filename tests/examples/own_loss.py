"""A loss of one's own: one released column says the mean of each record."""

import numpy as np


class KeepMean:
    """Squared error of a released column that should say the mean of a record."""

    def __init__(self, n_features, n_outputs, column=0):
        self.column = column

    def measure(self, z, x, desired, confidential):
        error = z[:, self.column] - x.mean(axis=1)
        slopes = np.zeros_like(z)
        slopes[:, self.column] = 2 * error
        return error**2, slopes
