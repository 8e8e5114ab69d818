//go:build tools

// Package tools pins Prometheus, which the tests of the chart's alerts and dashboards run.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
