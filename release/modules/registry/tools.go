//go:build tools

// Package tools names the program that this module pins, so that its requirements are listed.
package tools

import _ "github.com/distribution/distribution/v3/cmd/registry"
