"""Pages that hold everything they show: of attacks, and of a release with its gate."""
