"""Search on an ordered alphabet: coarse cells first, then carried back and refined."""
