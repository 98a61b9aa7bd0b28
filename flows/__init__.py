"""Prefect flows and the command: the outermost layer."""
