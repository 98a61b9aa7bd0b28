"""Collections: read as shards, each chunk against its receipt; made by `ingest`."""
