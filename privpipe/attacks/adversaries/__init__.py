"""Who guesses, and from what: adversaries by name, and the evidence they are given.

`table` lists them with what each may cost, and where each is; `problem` is a prediction problem as
one sees it; `evidence`, `codes` and `coordinates` turn released records into what it reads.
"""
