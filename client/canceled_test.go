package client

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// canceledOnce fails a request as net/http does when another one, whose connection this one was to get, is canceled.
type canceledOnce struct {
	next http.RoundTripper
	left atomic.Int32
}

func (c *canceledOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.left.Add(-1) >= 0 {
		return nil, context.Canceled
	}
	return c.next.RoundTrip(r)
}

// TestCanceledByAnother: "canceled" is an answer only to who canceled.
func TestCanceledByAnother(t *testing.T) {
	s := newService(t)
	id := s.create(t)
	c := s.client(t)
	k := c.http.Transport.(*keyed)
	broken := &canceledOnce{next: k.next}
	broken.left.Store(1)
	k.next = broken
	if _, err := c.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	k.next = broken.next
	got, err := c.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
	if err != nil || got.GetSandbox().GetState() != dsecv1.SandboxState_SANDBOX_STATE_STOPPED {
		t.Fatalf("after it was stopped: %v, %v", got.GetSandbox().GetState(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: id}); err == nil {
		t.Fatal("a canceled call was answered")
	}
}
