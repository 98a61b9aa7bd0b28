"""What is tried against a release: a module and a row of `attack_table` each, and what it decides.

Start reading at `attack_table` and, for adversaries that guess confidential variables, at
`inference`; `verdicts` turns what they guess into safe, leaks, unproven or unknown.
"""
