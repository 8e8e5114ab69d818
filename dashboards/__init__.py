"""Grafana dashboards of the chart, built with Grafana's foundation SDK, so that they match the schema of Grafana.

`python -m dashboards` writes them to charts/consumer-fleet/dashboards. They were not seen in Grafana itself.

Decision: docs/decisions/0063-dashboards.md.
"""

import warnings

# The SDK advises the dashboard schema v2, which Grafana's sidecar and older versions of Grafana do not read.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import dashboard, stat  # noqa: F401
