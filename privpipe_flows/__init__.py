"""The old name of the flows, for one version: servers have stored it as an entry point."""
