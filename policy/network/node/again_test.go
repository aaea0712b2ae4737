package node_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestPortAgain: a checked connection whose other side ended it does not keep the next one with the same port from getting
// through.
func TestPortAgain(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		site := w.inet.Site("one.example")
		w.set("one.example")
		if _, err := w.lookup(t.Context(), "ip4", "one.example"); err != nil {
			t.Fatal(err)
		}
		d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{Port: 40001}}
		for i := range 3 {
			var c net.Conn
			err := w.sandbox.Do(func() (err error) {
				c, err = d.Dial("tcp", netip.AddrPortFrom(site.V4[0], 80).String())
				return err
			})
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: one.example\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(c); err != nil || len(b) == 0 {
				t.Fatalf("connection %d: %q %v", i, b, err)
			}
			c.Close()
		}
	})
}
