"""Minimax filters: the trade-off Phi between the best analyst and the best adversary.

Hamm, JMLR 2017. `objective` evaluates Phi and its gradient in rounds over the records, with heads
solved by `newton`. It bounds how far Phi may rise on new records. `filters` are the families,
linear ones and sigmoid networks. `lifts` are what other adversaries read. `descent` lowers Phi.

Start reading at `objective`; the reasons are in DESIGN.md.
"""
