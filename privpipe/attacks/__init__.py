"""Judges a release as an outsider would: arrays in, never paths.

`inference` trains adversaries that guess confidential variables; `linkage`, `reconstruction`
and `membership` look for records; `information` counts what discrete releases give away.
`intervals`, `measures` and `roc` put limits on what is found.
"""
