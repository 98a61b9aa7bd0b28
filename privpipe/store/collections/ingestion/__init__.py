"""How a collection is made: a survey of the source, then chunks, digests and receipts."""
