"""The papers' figures and tables, ours beside theirs, with a verdict for every number.

`registry` lists what can be reproduced and runs it; `result` is what a reproduction returns; a
module per paper holds one function per figure.
"""
