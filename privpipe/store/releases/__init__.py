"""Releases: written in a workspace, published in one step, checked, read and exported."""
