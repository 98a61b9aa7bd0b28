"""Models: fitted maps as Zarr plus JSON, and predictors given as files."""
