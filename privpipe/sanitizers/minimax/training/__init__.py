"""From shards to tasks, moments and rounds: what the fits of all minimax filters share.

`labelled_moments` is the one pass over labelled records, `tasks` makes tasks of named variables and
their moments. `shard_oracle` sums over shards in rounds, `adversary_rounds` says against whom a
filter is trained and draws adversaries anew. `custom_code` is what users bring.
"""
