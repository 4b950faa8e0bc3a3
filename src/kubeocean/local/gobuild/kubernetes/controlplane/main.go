// Command controlplane is etcd, the Kubernetes control plane and kubectl in one binary.
//
// It plays the component that it is called as: a link named kube-apiserver to this binary is a
// kube-apiserver. Called by its own name it takes the component as first argument.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"

	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

var components = map[string]func(args []string) int{
	"etcd":                    runEtcd,
	"kube-apiserver":          run(apiserver.NewAPIServerCommand),
	"kube-controller-manager": run(controllers.NewControllerManagerCommand),
	"kube-scheduler":          run(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 run(kubectl.NewDefaultKubectlCommand),
}

func main() {
	args := append([]string(nil), os.Args...)
	component := filepath.Base(args[0])
	if _, known := components[component]; !known && len(args) > 1 {
		args = args[1:]
		component = args[0]
	}
	play, known := components[component]
	if !known {
		fmt.Fprintf(os.Stderr, "unknown component %q, expected one of: %s\n", component, names())
		os.Exit(2)
	}
	os.Exit(play(args))
}

// runEtcd keeps the whole argument list: etcd reads its own name from it.
func runEtcd(args []string) int {
	etcdmain.Main(args)
	return 0
}

func run(command func() *cobra.Command) func(args []string) int {
	return func(args []string) int {
		os.Args = args // kubectl and the version flags look at the process's own arguments
		cmd := command()
		cmd.SetArgs(args[1:])
		return cli.Run(cmd)
	}
}

func names() string {
	known := make([]string, 0, len(components))
	for name := range components {
		known = append(known, name)
	}
	sort.Strings(known)
	return strings.Join(known, ", ")
}
