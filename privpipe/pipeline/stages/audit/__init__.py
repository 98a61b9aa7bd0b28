"""The audit stage: each kind of attack, on the records that judge a release."""
