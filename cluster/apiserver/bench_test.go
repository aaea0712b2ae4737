package apiserver_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
)

// BenchmarkForward is the price of the API server: one unary call through it (TCP, key check, peek, forward over
// a Unix socket), and the same call straight to the edge's handlers.
func BenchmarkForward(b *testing.B) {
	r := newRig(b, "aaaa")
	id := r.edges[0].add(1)[0]
	direct := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", r.edges[0].socket)
	}}}
	for name, c := range map[string]dsecv1connect.CommandServiceClient{
		"direct":    dsecv1connect.NewCommandServiceClient(direct, "http://local"),
		"apiserver": dsecv1connect.NewCommandServiceClient(r.bearer(), r.api.URL),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Exec(b.Context(), &dsecv1.ExecRequest{SandboxId: id, Command: &dsecv1.CommandSpec{Shell: "true"}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
