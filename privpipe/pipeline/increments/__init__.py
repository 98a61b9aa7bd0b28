"""Incremental releases: a line with one model, a part per new partition, one switch at the end."""
