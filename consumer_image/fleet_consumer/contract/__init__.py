"""The contract between operator and workers: names, settings files, policies, breaker states, managed topics.

Operator and workers import this package, so they always agree. Pure functions, except that `load_config` reads its
file.

Decision: docs/decisions/0032-shared-contract.md.
"""
