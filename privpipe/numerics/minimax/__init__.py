"""Minimax filters: the trade-off Phi between the best analyst and the best adversary.

Hamm, JMLR 2017. `objective` evaluates Phi and its gradient in rounds over the records, with heads
solved by `newton`; `filters` are the families, linear ones and the sigmoid `network`; `descent`
lowers Phi; `generalisation_bound` says how far Phi may rise on new records.

Start reading at `objective`; why it is so stands in DESIGN.md.
"""
