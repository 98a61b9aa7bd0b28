"""Who may write: the lock or lease of a workspace, and what it holds."""
