"""`kubectl fleet`: ConsumerGroups as a person at a terminal sees them.

The modules `groups`, `explaining`, `tables`, `lines`, `previews` and `redaction` are pure: they take objects of the
API as dicts and `now`, and return rows and lines. `api` has the requests, `cli` the command line.

Decision: docs/decisions/0064-kubectl-plugin.md.
"""
