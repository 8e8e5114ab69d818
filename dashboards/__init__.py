"""Grafana dashboards of the chart. They are built with Grafana's foundation SDK, which ensures a valid schema.

`python -m dashboards` writes the dashboards to charts/consumer-fleet/dashboards. They were not tested in Grafana.

Decision: docs/decisions/0063-dashboards.md.
"""

import warnings

# Ignore the SDK's advice to use dashboard schema v2: Grafana's sidecar and older Grafana versions do not support it.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard, stat  # noqa: F401
