"""Tests of the chart's alerts and dashboards with a real Prometheus and a real Alertmanager."""
