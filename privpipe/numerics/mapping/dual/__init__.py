"""Two solvers of the dual: smoothed at a temperature, and an interior point on few pairs."""
