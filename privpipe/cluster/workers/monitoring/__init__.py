"""What a run shows while it works: progress as a value, gauges, a page on the dashboard."""
