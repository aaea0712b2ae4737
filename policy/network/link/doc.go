// Package link gives sandboxes a network: a router per node, and a pair of virtual interfaces per sandbox, or a tap where the
// sandbox is a machine.
//
// The *router* is a network namespace of its own. The host's ends of all sandboxes' pairs lie in it, and so do the
// node's resolver and proxies, so that the host's own interfaces, routes, firewall and names are left alone.
// Its *uplink* is one more pair, whose other end lies in the host's namespace: the host sees one address per
// family, behind which all sandboxes are hidden. The namespace is bound to a file in the state directory: it
// outlives every process, and is found again there.
//
// A *slot* is a sandbox's place, 0 to 16383. Addresses, hardware addresses and the interface's index follow from it
// (Plan), so that nothing needs to be kept in a database, and what is there can be listed by asking the kernel
// (Router.Slots). Addresses are points (/32, /128): sandboxes share no link and no broadcasts, there is no
// bridge, and the gateway is a static neighbour on both sides.
//
//	router, err := link.Open(link.Config{Dir: "/run/dsec/network", Plan: link.DefaultPlan(), Uplink: link.DefaultUplink()})
//	err = router.Make(7, netns)      // when a warm shell is made: interface, addresses, routes, all up
//	queue, err := router.MakeTap(12288)  // a machine's: its monitor is handed the queue, and the link ends with it
//	err = router.Remove(7)           // or let the sandbox's namespace end
//	err = router.Sweep(keep)         // after a restart
//	err = router.Destroy()           // when the node is taken down; Close leaves everything in place
//
// Making a link is two system calls with a batch of requests each, one in either namespace; the costs are the kernel's.
//
// What may pass is not decided here but by policy/network/datapath, which marks it: without a mark nothing of a sandbox
// is forwarded or taken in, so that a link is closed until the datapath is attached to it.
package link
