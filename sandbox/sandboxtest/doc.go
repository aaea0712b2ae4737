// Package sandboxtest is the conformance suite of sandboxes: whatever the kind of machine, they must behave
// the same. It drives a real edge over a driver through the API, as a client does:
//
//	func TestConformance(t *testing.T) {
//		sandboxtest.Run(t, sandboxtest.Factory{
//			Backend: func(t testing.TB, edge sandbox.EdgeID) sandbox.Backend { ... },
//			Layers:  []*dsecv1.ResolvedLayer{{Digest: base, Kind: "base"}},
//		})
//	}
//
// The driver's Capabilities decide what applies: without Real the programs are the fake's, and what needs a
// kernel (terminals, symbolic links, users) is left out. The environment of a Real driver is a Debian base, or
// one that has the same programs: bash, coreutils, and Perl for what needs a listening port.
//
// A Node is also the harness for tests of one driver or of the edge: an edge that serves on a Unix socket, its
// clients, and verbs that fail the test.
package sandboxtest
