package datapath_test

import (
	"testing"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

// testMembers: members of a private network reach each other, whatever their policies say, and nobody else does.
func testMembers(t *testing.T, w *world) {
	job, other := datapath.NewGroup("p/job"), datapath.NewGroup("q/job")
	a, b, stranger, lone := w.sandbox(20), w.sandbox(21), w.sandbox(22), w.sandbox(23)
	all := []*box{a, b, stranger, lone}
	for _, x := range all {
		server(t, x.NetSpace, portTCP)
		udpServer(t, x.NetSpace, at(x.addr4().String(), portUDP))
		udpServer(t, x.NetSpace, at(x.addr6().String(), portUDP))
	}
	meets := func(from, to *box) {
		t.Helper()
		for _, addr := range []string{to.addr4().String(), to.addr6().String()} {
			from.reaches("tcp", at(addr, portTCP))
			from.reaches("udp", at(addr, portUDP))
		}
	}
	apart := func(from, to *box) {
		t.Helper()
		for _, addr := range []string{to.addr4().String(), to.addr6().String()} {
			from.refused("tcp", at(addr, portTCP))
			from.refused("udp", at(addr, portUDP))
		}
	}
	apart(a, b)
	must(t, w.dp.Join(a.slot, job))
	must(t, w.dp.Join(b.slot, job))
	must(t, w.dp.Join(stranger.slot, other))
	for _, x := range all {
		x.set(allow("0.0.0.0/0"), allow("::/0"))
	}
	a.set() // nothing of the internet
	meets(a, b)
	meets(b, a)
	for _, pair := range [][2]*box{{a, stranger}, {stranger, a}, {a, lone}, {lone, a}, {b, stranger}, {lone, stranger}} {
		apart(pair[0], pair[1])
	}
	a.refused("tcp", at(site4, portTCP))
	b.reaches("tcp", at(site4, portTCP))
	// The router and places of the pools that are nobody's are closed to members as well.
	a.refused("tcp", at(w.router.Plan().Gateway4().String(), portTCP))
	a.refused("tcp", at(w.router.Plan().Address4(link1).String(), portTCP))

	// A change of rules leaves what members have open.
	c, err := dial(a.NetSpace, "tcp", at(b.addr4().String(), portTCP))
	must(t, err)
	defer c.Close()
	must(t, echoes(c, "before"))
	a.set(entry(site4+"/32", network.TCP, portTCP, portTCP, network.VerdictAllow))
	b.set()
	must(t, echoes(c, "after"))

	// Who leaves is a stranger, and what was open is cut.
	must(t, w.dp.Join(b.slot, datapath.Group{}))
	b.set(allow("0.0.0.0/0"))
	if err := echoes(c, "gone"); err == nil {
		t.Error("a connection of former members goes on")
	}
	apart(a, b)
	apart(b, a)
	// The next sandbox in the place of a member is none.
	must(t, w.dp.Join(b.slot, job))
	b.set(allow("0.0.0.0/0"), allow("::/0"))
	meets(a, b)
	must(t, w.dp.Clear(b.slot))
	must(t, w.dp.Attach(b.slot, datapath.Attachment{Index: link.Index(b.slot)}))
	b.set(allow("0.0.0.0/0"), allow("::/0"))
	apart(a, b)
	apart(b, a)
}

// link1 is a slot that no sandbox of the test has.
const link1 = 77
