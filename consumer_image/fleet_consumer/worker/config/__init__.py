"""A worker's settings from mounted files and environment variables: role, identity, credentials, policies."""
