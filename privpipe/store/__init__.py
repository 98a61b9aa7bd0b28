"""Collections, models and releases as Zarr. See DESIGN.md."""
