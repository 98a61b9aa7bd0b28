"""What a run is served by: Prefect, schedules, and who watches."""
