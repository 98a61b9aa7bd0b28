"""Masking by matrix completion: the arithmetic of surrogates that keep a regression model.

Yi et al. 2014, Privacy and Regression Model Preserved Learning. `completion` solves problem (3) by
two Gram matrices, whatever the number of records, in standardised units. `missing` solves problem
(5), where entries are missing. `sign_sums` draws X P on a grid on which sums have no rounding.

`private_moments` makes surrogates of moments that have noise: it repairs and shrinks.

Start reading at `completion`; DESIGN.md says what holds and why.
"""
