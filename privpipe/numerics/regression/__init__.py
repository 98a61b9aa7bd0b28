"""Linear predictors from merged sums: least squares and softmax heads.

`moments` are centred co-moments and least squares from them, `tsqr` triangular factors for
designs that a Gram matrix cannot bear, `logistic` losses and their curvature, `labels` the target
columns of named variables.
"""
