"""A run as a value: its state, its results, who watches it, and the Prefect it runs in."""
