"""Foreign sources of records, one module per format; each is read in blocks, never whole."""
