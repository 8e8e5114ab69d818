"""Settings of a worker: role, identity, credentials and policies, from files and environment."""
