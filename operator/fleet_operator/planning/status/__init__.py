"""Projections of facts into the status of each kind."""
