"""A run from its configuration to its release: what flows call, a stage at a time."""
