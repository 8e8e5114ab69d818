"""Settings of a worker from files and environment: role, identity, credentials and policies."""
