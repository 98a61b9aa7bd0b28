"""Measures, their intervals and their splits: what is a finding and what is chance."""
