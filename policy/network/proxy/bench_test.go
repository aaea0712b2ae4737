package proxy

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/policy/network/networktest"
)

// BenchmarkConnection compares a TLS connection through the proxy (dial, handshake, one small answer) with the same
// made directly, and then the throughput of one.
func BenchmarkConnection(b *testing.B) {
	n := start(b, nil)
	n.set("one.example")
	const size = 64 << 20
	one := n.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, size))
		}
	})))
	n.answer("one.example", one.V4...)
	direct := n.inet.Host()
	get := func(b *testing.B, from *networktest.Namespace, port uint16, path string) {
		conn, err := from.Dial(b.Context(), "tcp", netip.AddrPortFrom(one.V4[0], port).String())
		if err != nil {
			b.Fatal(err)
		}
		var c net.Conn = conn
		if port == 443 {
			c = tls.Client(conn, &tls.Config{ServerName: "one.example", RootCAs: n.inet.CA.Pool})
		}
		defer c.Close()
		fmt.Fprintf(c, "GET %s HTTP/1.0\r\nHost: one.example\r\n\r\n", path)
		if _, err := io.Copy(io.Discard, c); err != nil {
			b.Fatal(err)
		}
	}
	for _, way := range []struct {
		name string
		from *networktest.Namespace
	}{{"direct", direct}, {"proxied", n.sandbox}} {
		b.Run("connect/"+way.name, func(b *testing.B) {
			for b.Loop() {
				get(b, way.from, 443, "/")
			}
		})
		for scheme, port := range map[string]uint16{"http": 80, "tls": 443} {
			b.Run("throughput-"+scheme+"/"+way.name, func(b *testing.B) {
				b.SetBytes(size)
				before := cpu(b)
				for b.Loop() {
					get(b, way.from, port, "/large")
				}
				// What both ends and the proxy took of the processors: the busier the machine, the less the time says.
				b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N)*(1<<30)/size, "cpu-s/GiB")
			})
		}
	}
}

// cpu is what this process has used of the processors.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
