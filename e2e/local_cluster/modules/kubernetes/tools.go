//go:build tools

// Package tools pins the Kubernetes programs of the embedded cluster. Kubernetes releases its parts as 31 modules whose
// own go.mod files name version 0.0.0, so this module says by `replace` which ones belong to the release.
package tools

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
