//go:build tools

// Package tools pins the etcd server of the embedded cluster.
package tools

import _ "go.etcd.io/etcd/server/v3"
