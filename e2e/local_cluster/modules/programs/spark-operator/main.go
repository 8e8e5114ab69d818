// Command spark-operator is the controller of kubeflow's Spark operator, without its webhook: nothing here needs that, and
// it would want certificates.
package main

import (
	"fmt"
	"os"

	"github.com/kubeflow/spark-operator/v2/cmd/operator/controller"
	"github.com/spf13/cobra"
)

func main() {
	command := &cobra.Command{Use: "spark-operator"}
	command.AddCommand(controller.NewCommand())
	if err := command.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
