"""Judges a release as an outsider would: arrays in, never paths.

`threats` holds the attacks: `inference` trains adversaries that guess confidential variables;
`linkage`, `reconstruction` and `membership` look for records; `information` counts what discrete
releases give away. `adversaries` learn, `statistics` put limits on what is found; `moment_audit`
measures as Xu et al. do, by sums over all records.
"""
