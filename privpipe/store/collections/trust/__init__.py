"""What makes a collection believed: receipts, sealed, and reading against them."""
