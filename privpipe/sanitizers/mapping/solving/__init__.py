"""From a joint distribution, and perhaps a start, to a certified mapping."""
