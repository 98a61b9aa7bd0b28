"""A simulator of every command that writes: crashes, lost bytes, full disks, rivals and clocks.

Start reading in `histories`: what a number means. `disk` is the model of a file system, `recording`
how the changes of a command are written down, `commands` what is run, `oracles` what must hold.
"""
