"""Noise on a lattice: bounded records become whole numbers, and whole noise is added to them.

`bounding` filters records in a fixed order and brings them into the unit ball. `mechanism` puts
them onto a power-of-two grid, their norm checked in integers, and adds noise. `discrete` draws the
two-sided geometric law by integer comparisons, `knorm` the law of Hamm 2017, eq. (8), correctly
rounded. `privunit` adds nothing: it draws vectors of signs that agree with the record. See
DESIGN.md.

Start reading at `mechanism`, then `discrete`.
"""
