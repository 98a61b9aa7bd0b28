"""The Prefect flows: one file each, the order of stages on one screen."""
