// Package netproxy runs the check of names (policy/network/proxy) in a process of its own, so that checked connections
// outlive the edge: it is killed and started again, they go on, and the one that comes next takes them over.
//
// # Words
//
// A *Check* is the check of one network: the sandboxes by address, their programs, and which addresses were answered for
// which names. A *place* is a sandbox in it. A *Server* has the Check of a node and speaks with its edge, over a socket that
// is root's alone; a *Client* is the edge's end. Where nobody needs connections that outlive the process, the edge has
// a Check itself.
//
// # Life
//
// The edge's network says where the router's namespace is pinned; the Server listens there, and takes connections from then
// on, whether or not an edge speaks with it. What it knows of a sandbox changes by the edge's word alone: while there is no
// edge, sandboxes keep their programs, and names that were answered go on to be let through for their time. What happens
// meanwhile is kept, as far as there is room, until an edge says that it has the sandbox.
//
// An edge that finds the Server tells it all that it knows, and hears of each sandbox what was answered. One that loses it knows
// that its connections are gone with it: sockets belong to processes. It tells the sandboxes that had some, and the
// Server that comes next, which lets nobody through until it was told. A Server that does not answer is killed: then what it
// was told last does not hold any more, whatever state it is in.
//
// A Server whose network is gone, or is another one, ends what belonged to it.
package netproxy
