"""The convex programme of a mapping: distances, information, feasible plans and their bounds."""
