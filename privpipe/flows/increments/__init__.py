"""Incremental releases: one model, a part per new partition, one switch at the end."""
