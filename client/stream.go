package client

import (
	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// eventStream is what the two streams of command events have in common.
type eventStream interface {
	Receive() bool
	Event() *dsecv1.CommandEvent
	Err() error
	Close() error
}

type startStream struct {
	*connect.ServerStreamForClient[dsecv1.StartCommandResponse]
}

func (s startStream) Event() *dsecv1.CommandEvent { return s.Msg().GetEvent() }

type attachStream struct {
	*connect.ServerStreamForClient[dsecv1.AttachCommandResponse]
}

func (s attachStream) Event() *dsecv1.CommandEvent { return s.Msg().GetEvent() }
