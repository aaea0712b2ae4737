package client

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"connectrpc.com/connect"
)

// NoServiceError says that nothing answers at the service's address.
type NoServiceError struct {
	URL string
	Err error
}

func (e *NoServiceError) Error() string {
	return fmt.Sprintf("no DSec service answers at %s: start one on this machine with `dsec up --detach`, or set DSEC_URL", e.URL)
}

func (e *NoServiceError) Unwrap() error { return e.Err }

// explain makes a connection error one that says what to do.
func (c *Client) explain(err error) error {
	var op *net.OpError
	if err != nil && !connect.IsWireError(err) && errors.As(err, &op) && op.Op == "dial" {
		return &NoServiceError{URL: c.base.String(), Err: err}
	}
	// Without an error of ours in it, the answer is some other server's.
	if ce := (*connect.Error)(nil); errors.As(err, &ce) && !connect.IsWireError(err) && ce.Code() == connect.CodeUnimplemented {
		return fmt.Errorf("what answers at %s is no DSec service (%s): check DSEC_URL", c.base, ce.Message())
	}
	if err != nil && !connect.IsWireError(err) && cutOff(err) {
		return fmt.Errorf("the connection to %s broke before the answer was whole (what was asked may have been done); look, and ask again: %w", c.base, err)
	}
	return err
}

// Explain says what to do about an error of a stream: the calls of this package do it themselves.
func (c *Client) Explain(err error) error { return c.explain(err) }

// cutOff tells that a connection ended too early.
func cutOff(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// Message is an error's text for people: without the code word that Connect puts in front.
func Message(err error) string {
	if ce, ok := err.(*connect.Error); ok {
		return ce.Message()
	}
	return err.Error()
}
