"""Judges a release as an outsider would: arrays in, never paths."""
