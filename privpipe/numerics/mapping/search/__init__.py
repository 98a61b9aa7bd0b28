"""Searches for a near-optimal mapping: on pairs of any alphabet, and by cells of an ordered one."""
