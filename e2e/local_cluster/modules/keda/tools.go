//go:build tools

// Package tools pins KEDA, which is measured beside our own scaling. Its replace block is repeated here, as a module of
// others does not hold for whoever requires it.
package tools

import (
	_ "github.com/kedacore/keda/v2/cmd/adapter"
	_ "github.com/kedacore/keda/v2/cmd/operator"
)
