"""What rounding may cost a stored record, bounded before it happens, or balanced."""
