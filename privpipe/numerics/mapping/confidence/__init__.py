"""Upper confidence bounds on what a fixed mapping tells under the law its records come from."""
