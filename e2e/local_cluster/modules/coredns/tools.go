//go:build tools

// Package tools pins CoreDNS, the cluster's name service.
package tools

import _ "github.com/coredns/coredns"
