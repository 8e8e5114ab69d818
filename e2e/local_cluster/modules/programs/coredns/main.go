// Command coredns is CoreDNS with the plugins that the cluster's Corefile names, and no others. CoreDNS as released
// links the client libraries of three clouds; without them it compiles in a third of the time.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"

	"github.com/coredns/coredns/coremain"
)

func main() {
	coremain.Run()
}
