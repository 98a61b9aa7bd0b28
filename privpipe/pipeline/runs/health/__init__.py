"""What `privpipe doctor` looks at: each check asks the real thing and says the way out."""
