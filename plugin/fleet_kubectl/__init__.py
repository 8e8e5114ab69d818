"""`kubectl fleet`: shows and handles ConsumerGroups at a terminal.

These modules are pure: `details`, `explaining`, `groups`, `live`, `loglines`, `pods`, `redaction`, `runs`, `selection`
and `tables`. They take API objects as dicts and the time `now`, and return rows and lines. `api` sends the requests;
`cli` is the command line's entry point. Decision: docs/decisions/0064-kubectl-plugin.md.
"""
