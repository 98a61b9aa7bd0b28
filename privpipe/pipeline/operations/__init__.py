"""What operators do beside runs: erase, withdraw, look whether all is well."""
