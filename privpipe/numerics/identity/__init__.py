"""Who a record is: hashes of its values, and words that small changes of them do not change."""
