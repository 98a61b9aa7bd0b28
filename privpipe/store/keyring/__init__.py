"""Keys of random draws: made, bound, stored apart, destroyed; one per partition of a source."""
