"""From shards to tasks, moments and rounds: what the fits of all minimax filters share.

`labelled_moments` is the one pass over labelled records, `task_planning` makes `tasks` of named
variables and their moments, `closed_forms` solves what moments alone decide, `shard_oracle` sums
over shards in rounds, `adversary_rounds` draws adversaries anew; `custom_code` is what users bring.
"""
