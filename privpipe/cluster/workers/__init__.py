"""The workers: a local cluster that no one else can speak to, or a running one."""
