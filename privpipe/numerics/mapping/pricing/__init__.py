"""Reduced costs over all pairs of symbols: blocks of columns, or lines of an ordered alphabet."""
