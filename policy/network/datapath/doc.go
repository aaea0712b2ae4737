// Package datapath enforces network policies, outside of the sandboxes: at the router's end of each sandbox's link
// (policy/network/link) and, for a quick answer, on its control group. It judges packets by the table that a policy compiles
// to (network.Program.Static) and by addresses that names were answered with (Learn); what names may be asked, and what
// they may be reached as, is the resolver's and the proxy's affair.
//
// # Words
//
// A slot is a sandbox's place. A *generation* is the caller's number of a slot's policy; a *token* is the number that the kernel
// knows it by, which no other policy of any slot ever had. A *flow* is a connection, an exchange of datagrams or of echoes,
// and holds the token that it was allowed under: when the slot's token is another, the flow is judged anew by its next packet in
// either direction. So a change of policy is one store of one word (the token and the policy's number), however many flows there
// are, and cuts exactly those that are no longer allowed.
//
// # What passes
//
// From a sandbox: IPv4 without options, IPv6 without extension headers, unfragmented, from its own hardware address and its
// own address, to the gateway's hardware address; TCP, UDP, echo requests, and ICMP errors about its flows. To the gateway:
// port 53 and nothing else. To anything else: what the policy says, unless the address is never allowed (the node, other
// sandboxes, link-local, multicast, addresses that embed IPv4: Forbid). To a sandbox: answers of its flows, errors about them, and TCP
// connections from the gateway's address, which the node's port proxy makes (link.Router.Dial). ARP and ND for the gateway are answered
// by the programs; no other pass. Since a sandbox's address is checked at the link, namespaces, bridges and interfaces made inside
// gain nothing: what they send is dropped, or is the sandbox's own.
//
// Members of a private network (Join) open connections to each other, by TCP and UDP: both ends' slots are looked at, at both
// links, so that an address that has a new owner leads nowhere.
//
// What is to be checked (network.VerdictCheck) is handed to the proxy's transparent listener (link.Router.Listen): the accepted
// connection's local address is the one that the sandbox dialled. Without a listener it is refused.
//
// What is refused by policy is answered at once: by a reset, or by "administratively prohibited"; in the sandbox's control group
// connect and sendto fail with EPERM before anything is sent. Loopback is never touched. The group's programs speak for the sandbox's own network namespace only.
//
// # In the kernel
//
// All slots share one set of programs and maps (bpf/, compiled ahead), which are pinned: they enforce on when this process is killed, and
// the next Open takes them over with policies, learned addresses, flows and counters. Their directory is named by the programs'
// version; another version starts empty, and what is attached reaches nothing until it is attached and set again. Programs belong to
// the interfaces and groups that they are on, and go with them. Policies are stored by content: a thousand
// sandboxes of one job have one. Fragments of large answers are put together by the router and let in if they fit the link's MTU.
//
// Limits: bandwidth is policed (what is over it is dropped), not shaped, for that needs a queueing discipline which not every kernel has; the flow
// table is shared and drops the least recently used, which costs such a flow a second look and nothing else.
//
// OpenNftables does the same where eBPF is refused, by the nft program: slower to change (a transaction of tens of milliseconds), and without
// answers to ARP and ND; Capabilities say what else differs. Denials reach it by the kernel's packet log, ends of flows by its connection tracking.
package datapath
