"""The audit stage: every attack, on the records that judge a release."""
