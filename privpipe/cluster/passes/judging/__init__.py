"""The audit on workers: the sample adversaries see, attacks as tasks, questions in one pass."""
