package client

import (
	"context"
	"net/http"
	"sync/atomic"
)

// canceledOnce fails one request as net/http does when another one, whose connection this one was to get, is canceled.
type canceledOnce struct {
	next http.RoundTripper
	done atomic.Bool
}

func (c *canceledOnce) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.done.CompareAndSwap(false, true) {
		return nil, context.Canceled
	}
	return c.next.RoundTrip(r)
}

// CancelOnce makes the next request fail; the function that it returns undoes that.
func (c *Client) CancelOnce() func() {
	k := c.http.Transport.(*keyed)
	next := k.next
	k.next = &canceledOnce{next: next}
	return func() { k.next = next }
}
