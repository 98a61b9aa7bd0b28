"""What a run is given: TOML, the environment, a first file to fill in."""
