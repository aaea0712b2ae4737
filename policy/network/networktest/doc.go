// Package networktest is a small internet for tests: a network namespace that a test makes for itself, with web
// sites (plain, TLS by an authority of its own, IPv6 only), a resolver whose answers a test scripts, a hostile
// resolver, and a metadata service. Hosts are further namespaces, each joined to it by a veth pair with a default
// route for IPv4 and IPv6.
//
// All of it lives in memory and goes away with the test: namespaces have no names, so that the last descriptor
// that is closed removes the veths, addresses and routes with them, even after a panic or kill -9.
//
//	inet := networktest.New(t)                     // skips without root
//	site := inet.Site("pypi.org", networktest.V4(2), networktest.V6(1))
//	host := inet.Host()                            // its namespace reaches site.Addrs through its default route
//	conn, err := host.Dial(ctx, "tcp", site.V4[0].String()+":443")
//
// Its addresses are those that are reserved for documentation: sites in 203.0.113.0/24 and 2001:db8:1::/48, the
// resolvers in 198.51.100.0/24 and 2001:db8:53::/48, links in 192.0.2.0/24 and 2001:db8:ffff::/48. A policy
// treats them as part of the internet.
package networktest
