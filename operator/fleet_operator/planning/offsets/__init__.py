"""Committed offsets of a group: resets, single records that a spec names to be skipped, and protection from expiry."""
