// Package network says what a sandbox may reach: rules as users write them, policies made of rules, and the program
// that policies compile to. It does no I/O. The data plane (datapath), the resolver (dns) and the proxy (proxy) act by
// a Program; nothing else decides.
//
// # Words
//
// A Rule allows or denies one target: a service ("pypi", a named set of domains: Catalog), a domain ("pypi.org",
// "*.pypi.org") or a range of addresses ("10.1.0.0/16"), with ports and a protocol. A Policy is what one party says: all
// of its rules, or "none", or "open". A Layer is a policy and whose it is: the spec's, the environment's, a project's. A
// Program is layers, compiled. A destination is an address, a protocol and a port, and the name that the address was
// answered for.
//
// # Precedence
//
// Within one policy, what no rule allows is denied, and a rule that denies beats every rule that allows, however
// specific either is. The same target both allowed and denied is refused. So {"npm": false, "pypi": true} allows PyPI
// and nothing else, "*.example.org" with "!a.example.org" allows all names there but one, and "open" with "!github" is
// the internet without GitHub. "open" leaves other resolvers out (ports 53 and 853), or names would be no policy; a rule
// for their address adds them.
//
// Across layers, a destination must be allowed by each layer that is present: the narrowest wins, nobody can widen what
// another closed, and their order does not matter. Without any layer all is denied.
//
// Always, whatever rules say: the node, its platform and other sandboxes (Compiler.Node), loopback, link-local and
// metadata addresses, multicast, reserved ranges, and IPv6 ranges that embed IPv4 addresses are denied. Private ranges
// are denied unless each layer has a rule for a range inside them: "open" and "0.0.0.0/0" do not open 10.0.0.1,
// "10.0.0.0/24" does. A name never opens a private address.
//
// # Names
//
// A name that a rule allows resolves, and exactly the addresses that the node's resolver answered become reachable,
// while the answer is valid (Program.Open). A rule for a domain without ports opens TCP 80 and 443, and not all: other
// ports are not checked, and on some of them content networks serve all of their tenants; "example.org:*" opens all.
// What a name opens on TCP 80 and 443 is handed to the proxy, which compares SNI or Host (VerdictCheck, Program.Admit);
// UDP 443 is closed, since QUIC hides the name. Where a policy denies names and addresses are open in their own right
// ("open" with "!github"), web ports are checked the same way on all public addresses. On other ports, such a denial
// means only that the name does not resolve.
package network
