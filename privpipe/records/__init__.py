"""Names, dims, kinds and chunks of collections."""
