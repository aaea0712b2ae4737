// Command network measures the network of sandboxes: what a link costs, connections and throughput with a policy beside the
// same link without one, changing the policy of a thousand sandboxes, what rules cost per packet, what the resolver and the
// check of names add, creations on a whole node, and what is left when a thousand of them are gone. Sandboxes, router, host and
// internet are network namespaces of its own; nothing of the machine's network is touched.
package main
