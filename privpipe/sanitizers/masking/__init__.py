"""Masking: surrogate records that are signed sums of all records, and keep a regression model.

Yi et al. 2014, Privacy and Regression Model Preserved Learning. `surrogates` has the options and
the fit. `record_survey` sums the records up in one pass, `refusals` says what would be unsafe, and
the `masking_model` is what is stored. It says what to sum with random signs, and what to make of
the sums. Records are in memory or, by `privpipe.cluster.passes.cleaning_pass`, on workers. The
arithmetic is in `privpipe.numerics.masking`.

What is released is X P and a coefficient matrix: second moments, and no residual of a response.
`private_masking` adds noise to the second moments first, once, and makes surrogates of these.
Single records are then protected, as no surrogate of the paper's protects them.

Start reading at `surrogates`, then `masking_model`.
"""

from privpipe.sanitizers.masking import private_masking, surrogates

METHODS = (surrogates.METHOD, private_masking.METHOD)
"""The rows of this wing."""
