package qemu

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// Dial connects to a socket in a machine's directory, by way of a descriptor, because socket addresses end at 108 bytes.
func Dial(ctx context.Context, dir, name string) (net.Conn, error) {
	dh, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer dh.Close()
	var dl net.Dialer
	return dl.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dh.Fd(), name))
}

// Await waits until a process listens in dir. There is no event for that.
func Await(ctx context.Context, dir, name string, gone <-chan struct{}) (net.Conn, error) {
	for {
		nc, err := Dial(ctx, dir, name)
		if err == nil {
			return nc, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-gone:
			return nil, fmt.Errorf("%w: QEMU has ended", sandbox.ErrUnavailable)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
