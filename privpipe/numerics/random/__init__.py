"""Draws as a function of key, purpose, partition and record number, and of nothing else.

`streams` turns these into uniform words, `draws` and `categorical` words into values whose bits are
the same on every processor; see DESIGN.md. `record_hash` chooses by the bits of a record instead.
`record_grids` knows one again after small changes, and `record_overlap` counts how many two sets
have in common.
"""
