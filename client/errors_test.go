package client

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"
)

// A connection that ends too early is told as such, and stays what it was for who tries again; answers are left alone.
func TestExplainBrokenConnections(t *testing.T) {
	c := &Client{base: &url.URL{Scheme: "http", Host: "here"}}
	for _, x := range []struct {
		err   error
		after bool
	}{
		{err: connect.NewError(connect.CodeInternal, fmt.Errorf("protocol error: incomplete envelope: %w", io.ErrUnexpectedEOF)), after: true},
		{err: fmt.Errorf("read: %w", io.EOF), after: true},
		{err: connect.NewWireError(connect.CodeInternal, io.ErrUnexpectedEOF)},
		{err: errors.New("other")},
	} {
		got := c.explain(x.err)
		if !errors.Is(got, x.err) || strings.Contains(got.Error(), "ask again") != x.after {
			t.Errorf("%v: %v", x.err, got)
		}
	}
	if c.explain(nil) != nil {
		t.Error("nothing became an error")
	}
}
