//go:build tools

// Package tools pins Helm, which installs the chart into the embedded cluster.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
