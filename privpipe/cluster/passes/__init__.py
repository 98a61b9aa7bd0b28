"""What is done once over all chunks: proving a source, summing, cleaning, judging, pricing.

A pass takes any executor. Start reading at `reduce` (sums, with checkpoints)
and `cleaning_pass` (store to worker to store); `attack_tasks` attacks what was cleaned.
"""
