"""Keys of random draws: made, bound, kept apart, destroyed; one per partition of a source."""
