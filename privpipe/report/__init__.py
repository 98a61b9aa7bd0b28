"""Tables, figures and pages from values."""
