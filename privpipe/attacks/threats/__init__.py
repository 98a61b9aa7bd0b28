"""The kinds of attack: one module and one row of `attack_table` each, and what inference decides.

Start reading at `attack_table`; `verdicts` turns what adversaries guess into safe, leaks,
unproven or unknown.
"""
