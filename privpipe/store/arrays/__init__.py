"""Arrays on disk: their documents, whole chunks with receipts, the basis of a factored release."""
