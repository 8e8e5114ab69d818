"""Projections of facts into the statuses of custom resources."""
