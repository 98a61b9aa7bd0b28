"""What operators do beside runs: erase, look whether all is well, the server of Prefect."""
