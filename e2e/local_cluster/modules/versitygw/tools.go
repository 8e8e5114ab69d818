//go:build tools

// Package tools pins the S3 gateway of the tests. It has a module of its own, as nothing of it is in other programs: a
// newer one builds none of them again.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
