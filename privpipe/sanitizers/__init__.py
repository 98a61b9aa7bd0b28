"""One module per method: its options, its fit functions, its frozen fitted map."""
