package apiserver_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
)

// TestPrivateNetworks: a private network does not reach from node to node, so that a service with more than one refuses it
// before any edge hears of it; a service with one does not.
func TestPrivateNetworks(t *testing.T) {
	spec := &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "debian"}, PrivateNetwork: "job1", NetworkName: "db"}
	asked := func(r *rig) int {
		n := 0
		for _, e := range r.edges {
			e.mu.Lock()
			if e.created != nil {
				n++
			}
			e.mu.Unlock()
		}
		return n
	}
	r := newRig(t, "aaaa", "bbbb")
	_, err := dsecv1connect.NewSandboxServiceClient(r.bearer(), r.api.URL).CreateSandbox(ctxT(t), &dsecv1.CreateSandboxRequest{Spec: spec})
	wantCode(t, err, connect.CodeUnimplemented)
	if !strings.Contains(err.Error(), "private_network") || !strings.Contains(err.Error(), "this service has 2") || asked(r) != 0 {
		t.Errorf("%v; %d edges were asked", err, asked(r))
	}
	r = newRig(t, "cccc")
	if _, err := dsecv1connect.NewSandboxServiceClient(r.bearer(), r.api.URL).CreateSandbox(ctxT(t), &dsecv1.CreateSandboxRequest{Spec: spec}); err != nil || asked(r) != 1 {
		t.Errorf("with one node: %v; %d edges were asked", err, asked(r))
	}
}
