package edge_test

import (
	"net"
	"strings"
	"sync/atomic"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fake"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// ackEater is an edge's end of a channel that loses acknowledgements while it is told to, as a connection does that
// breaks before they are read.
type ackEater struct {
	net.Conn
	eats *atomic.Bool
	part []byte // of a frame
}

func (a *ackEater) Write(p []byte) (int, error) {
	a.part = append(a.part, p...)
	for len(a.part) >= wire.HeaderSize {
		h, err := wire.ParseHeader(a.part)
		if err != nil {
			return 0, err
		}
		n := wire.HeaderSize + h.Size
		if len(a.part) < n {
			break
		}
		if h.Kind != wire.KindAck || !a.eats.Load() {
			if _, err := a.Conn.Write(a.part[:n]); err != nil {
				return 0, err
			}
		}
		a.part = a.part[n:]
	}
	return len(p), nil
}

// TestAcknowledgementsLost: an edge ends when all that a command's buffer holds is recorded and nothing of that is
// acknowledged. Under its successor the command goes on.
func TestAcknowledgementsLost(t *testing.T) {
	var eats atomic.Bool
	n := sandboxtest.Start(t, factoryOf(fake.Options{Wrap: func(_ sandbox.ID, c net.Conn) net.Conn {
		return &ackEater{Conn: c, eats: &eats}
	}}), nil)
	b := n.Create(t, nil)
	eats.Store(true)
	id := b.Detach(&dsecv1.CommandSpec{Shell: "count 200000; echo last"}).Id
	recorded := func() int {
		text, cut := sandboxtest.Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: id, NoFollow: true}).All(), 0)
		return len(text) + int(cut)
	}
	sandboxtest.Eventually(t, "its buffer is full and recorded", func() bool { return recorded() >= 256<<10 })
	eats.Store(false)
	n.Restart()
	text, cut := sandboxtest.Text(b.Attach(&dsecv1.AttachCommandRequest{CommandId: id}).All(), 0)
	if !strings.HasSuffix(text, "\nlast\n") {
		t.Errorf("%d bytes and %d cut, without the end", len(text), cut)
	}
}
