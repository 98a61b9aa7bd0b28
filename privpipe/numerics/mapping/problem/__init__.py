"""The programme and its distances, the prices of all pairs, the smoothed dual on some of them."""
