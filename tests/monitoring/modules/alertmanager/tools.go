//go:build tools

// Package tools pins Alertmanager. Modules of later versions than 0.31 do not have the built web page that its source
// embeds, and Prometheus needs a later version of Alertmanager's packages, so each has a module of its own.
package tools

import (
	_ "github.com/prometheus/alertmanager/cmd/alertmanager"
	_ "github.com/prometheus/alertmanager/cmd/amtool"
)
