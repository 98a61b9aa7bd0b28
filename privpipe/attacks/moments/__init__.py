"""What sums over all records tell, without a sample: least squares attacks and utility.

`moment_audit` is one pass over pairs of raw and released records, `audit_rounds` its rounds,
`findings` what they say; `utility` checks the promise on every record; `null_space_privacy`
measures null-space cleaning as Xu et al. do.
"""
