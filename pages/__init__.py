"""Generates two pages of docs/: the words in statuses, and the fields of the custom resources."""
