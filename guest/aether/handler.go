package aether

import (
	"context"
	"io"

	"github.com/opendsec/dsec/guest/wire"
)

// Handler receives what a sandbox says by itself. Its methods are called from the connection's one reader, in
// order; they must not block for long and must not call the Conn synchronously (Ack and Release are fine:
// they only queue).
type Handler interface {
	// Output delivers a piece of a command's output; offset counts the bytes of all its streams. data is valid
	// during the call only. The edge acknowledges with Ack once it has stored it.
	Output(command string, offset int64, stream wire.Stream, data []byte)
	// Exited is sent once per command and again after each reconnect until Release.
	Exited(command string, exit wire.Exit)
	// SessionEnded tells that a session's shell has ended. It is sent again after each reconnect until
	// CloseSession.
	SessionEnded(session string, exit wire.Exit)
	// Closed is the last call: the channel is gone.
	Closed(err error)
}

// Writer takes a stream. Commit makes it visible at once and whole; Close without Commit leaves nothing (of
// Unpack: what was unpacked so far).
type Writer interface {
	io.Writer
	Commit(ctx context.Context) error
	Close() error
}
