"""Desired predictions on a grid, exactly: all that a cleaned record may be a function of."""
