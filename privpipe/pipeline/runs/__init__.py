"""A run as a value: its configuration, state, results, approval and health."""
