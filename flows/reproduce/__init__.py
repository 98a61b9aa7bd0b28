"""Each paper's experiments again: tables, intervals and figures beside the printed ones."""
