"""The stages of a run, each a plain function: check, prove, train, clean, audit, publish."""
