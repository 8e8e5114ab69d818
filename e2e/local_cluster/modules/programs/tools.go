//go:build tools

// Package tools pins the programs of the embedded cluster. All are in one module, so that each package of Kubernetes'
// libraries has one version and is compiled once: Helm, CoreDNS and the Spark operator are linked from what the API server
// was. Kubernetes releases its parts as 31 modules whose own go.mod files name version 0.0.0, so this module says by
// `replace` which ones belong to the release; the same lines hold the others to it.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "helm.sh/helm/v4/cmd/helm"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
