"""Linear predictors from merged sums: least squares and softmax heads.

`moments` are centred co-moments, least squares from them, and the target columns of named
variables, `tsqr` triangular factors for designs that a Gram matrix cannot bear, `logistic` losses
and their curvature.
"""
