"""Searches for a near-optimal mapping; `mapping_search` chooses the route.

`pairs` works on any alphabet and holds the paper's own algorithm, `ordered` solves coarse cells of
an ordered alphabet first.
"""
