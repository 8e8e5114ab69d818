"""Generates pages of docs/ from the code: the words of statuses, and the fields of the custom resources."""
