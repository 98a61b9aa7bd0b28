"""Limits of what is found: intervals, bootstraps, exposure at few false alarms."""
