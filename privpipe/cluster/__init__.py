"""Chunks in flight: reductions, cleaning and oracles on Dask workers. See DESIGN.md."""
