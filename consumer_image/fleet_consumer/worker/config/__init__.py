"""The worker's settings: role, identity, credentials and policies, from files and environment."""
