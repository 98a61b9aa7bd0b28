"""From shards to tasks, moments and rounds: what the fits of all minimax filters share.

`labelled_moments` is the one pass over labelled records, `task_planning` makes `tasks` of named
variables and their moments, `closed_forms` solves what moments alone decide, `shard_oracle` asks
the shards in rounds, `pretraining` stacks autoencoders.
"""
