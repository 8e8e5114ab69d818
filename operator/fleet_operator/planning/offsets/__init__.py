"""Offsets as a spec declares them: one reset of a group's committed offsets, and single records to pass by."""
