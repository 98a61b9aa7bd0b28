"""The gate: what leaks is not published, whatever happens to the run."""
