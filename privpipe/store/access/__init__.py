"""Places and who may write there: URLs, bounds on what is decoded, durability."""
