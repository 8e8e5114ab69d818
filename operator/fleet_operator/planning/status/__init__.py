"""Builds the statuses of custom resources from facts."""
