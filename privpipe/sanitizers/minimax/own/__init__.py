"""Filters of the user's own: a class in a file of theirs, checked, trained, stored and released.

Start reading at `own_filter`; what such a class must have is said by `filter_code.DeclaredFilter`.
"""
