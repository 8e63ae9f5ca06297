// Command network-policies enforces NetworkPolicies on the node: the judgement is that of
// sigs.k8s.io/kube-network-policies, which reads policies, namespaces and pods from the API server and answers for each
// new connection that the kernel puts into its queue. Its own command wants to run in a pod, and fills the queue by
// nftables' queue statement, which not every kernel has; here it runs beside the kubelet, and `cluster enforce-policies`
// fills the queue by iptables. That it cannot set its own rules is logged and does no harm.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "who asks the API server")
	node := flag.String("hostname-override", "", "the name of this node")
	queue := flag.Int("nfqueue-id", 100, "the queue that new connections are put into")
	flag.Parse()
	if err := run(*kubeconfig, *node, *queue); err != nil {
		klog.Fatal(err)
	}
}

func run(kubeconfig, node string, queue int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	all := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(
		client,
		all.Networking().V1().NetworkPolicies(),
		all.Core().V1().Namespaces(),
		all.Core().V1().Pods(),
		nil, nil, nil, nil, // AdminNetworkPolicies
		// The runtime has no NRI to name new pods by; that is logged. (NRIdisabled panics at the first address of no pod.)
		networkpolicy.Config{NodeName: node, QueueID: queue},
	)
	if err != nil {
		return err
	}
	all.Start(ctx.Done())
	return controller.Run(ctx)
}
