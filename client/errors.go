package client

import (
	"errors"
	"fmt"
	"net"

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
	return err
}

// Message is an error's text for people: without the code word that Connect puts in front.
func Message(err error) string {
	if ce, ok := err.(*connect.Error); ok {
		return ce.Message()
	}
	return err.Error()
}
