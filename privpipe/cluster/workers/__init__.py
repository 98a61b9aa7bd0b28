"""The workers: a local cluster that nobody else can speak to, or a running one."""
