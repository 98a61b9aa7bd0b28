"""Faults planted on purpose, as data, and what plants them: a promise is tested if its fault is."""
