"""From outcomes of attacks to one verdict per variable, with its reason."""
