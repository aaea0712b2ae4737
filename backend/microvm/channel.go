package microvm

import (
	"context"
	"net"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/guest/machine/control"
)

// controlConn is a connection to a machine's first program, channelConn one to dsec-init.
type (
	controlConn struct{ *qemu.Control }
	channelConn = qemu.Channel
)

func newControlConn(nc net.Conn, closed func([]byte)) *controlConn {
	return &controlConn{qemu.NewControl(nc, func(r *control.Reply) {
		if r.Event == control.EventClosed {
			closed(r.Token)
		}
	})}
}

func (c *controlConn) close() { c.Close() }

func (c *controlConn) call(ctx context.Context, q *control.Request) (*control.Reply, error) {
	return c.Call(ctx, q)
}

func openChannel(ctx context.Context, dir string, ctl *controlConn) (*channelConn, error) {
	return qemu.OpenChannel(ctx, dir, channelName, ctl.Control)
}

func awaitSocket(ctx context.Context, dir, name string, gone <-chan struct{}) (net.Conn, error) {
	return qemu.Await(ctx, dir, name, gone)
}

func (c *controlConn) send(q *control.Request) (<-chan *control.Reply, func(), error) {
	return c.Send(q)
}
