"""Requests that administer topics, configurations and groups."""
