"""Noise on a lattice: bounded records become whole numbers, and whole noise is added to them.

`bounding` brings records into the unit ball, `lattice` onto a power-of-two grid, with the norm
checked in integers. `discrete` draws the two-sided geometric law by integer comparisons, `knorm`
the law of Hamm 2017, eq. (8), correctly rounded; `knorm_exact` decides what its floats cannot.
`projection` multiplies in an order that no chunking changes. See DESIGN.md.

Start reading at `lattice`, then `discrete`.
"""
