package edge

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// An error that wraps another process's keeps what it says itself, and its kind; what only wraps keeps code and details.
func TestWireErrorOfErrorsFromBelow(t *testing.T) {
	below := connect.NewError(connect.CodeInternal, errors.New("protocol error: incomplete envelope: unexpected EOF"))
	d, err := connect.NewErrorDetail(&dsecv1.Error{Code: "word"})
	if err != nil {
		t.Fatal(err)
	}
	below.AddDetail(d)
	for _, c := range []struct {
		err  error
		code connect.Code
		says string
	}{
		{below, connect.CodeInternal, "incomplete envelope"},
		{fmt.Errorf("pack: %w: try again: %w", sandbox.ErrUnavailable, below), connect.CodeUnavailable, "try again"},
		{fmt.Errorf("sandbox x: %w", below), connect.CodeInternal, "sandbox x"},
	} {
		var got *connect.Error
		if !errors.As(wireError(c.err), &got) || got.Code() != c.code || !strings.Contains(got.Message(), c.says) || len(got.Details()) != 1 {
			t.Errorf("%v: %v, %d details; want %v with %q and 1", c.err, got, len(got.Details()), c.code, c.says)
		}
	}
}
