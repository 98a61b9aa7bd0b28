"""What scheduled runs need beside the run: logical times, retries, a server that may be away."""
