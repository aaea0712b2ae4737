package aether

import (
	"context"
	"errors"
	"io"
	"net"
	"os"

	"github.com/opendsec/dsec/guest/wire"
)

var errTodo = errors.New("not built yet")

// Handler receives what a sandbox says by itself. Its methods are called from the connection's one reader, in
// order; they must not block for long and must not call the Conn synchronously (Ack and Release are fine:
// they only queue).
type Handler interface {
	// Output delivers a piece of a command's output; offset counts the bytes of all its streams. data is valid
	// during the call only. The edge acknowledges with Ack once it has stored it.
	Output(command string, offset int64, stream wire.Stream, data []byte)
	// Exited is sent once per command and again after each reconnect until Release.
	Exited(command string, exit wire.Exit)
	// SessionEnded tells that a session's shell has ended.
	SessionEnded(session string, exit wire.Exit)
	// Closed is the last call: the channel is gone.
	Closed(err error)
}

// Conn is the edge's end of the channel to one dsec-init. Methods are safe for concurrent use. Errors from
// dsec-init are *wire.Error.
type Conn struct{}

// Open says hello over nc with the given epoch and waits for the answer. dsec-init closes connections of
// smaller epochs. No goroutine runs before Serve.
func Open(ctx context.Context, nc net.Conn, epoch uint64) (*Conn, error) { return nil, errTodo }

// Claim gives a warm shell its environment; root is the descriptor of a detached mount. It may be called
// before Serve, and only once in a shell's life.
func (c *Conn) Claim(ctx context.Context, claim *wire.Claim, root *os.File) error { return errTodo }

// Serve starts the reader; h gets all that arrives from now on. Call once. Output of a command flows only
// after Start on this connection or Resume.
func (c *Conn) Serve(h Handler) {}

// Close closes the connection; dsec-init and its commands go on.
func (c *Conn) Close() error { return nil }

// Start starts a command in the group whose descriptors are given (sandbox.Group.Files; nil in VMs).
func (c *Conn) Start(ctx context.Context, s *wire.Start, group []*os.File) (wire.Started, error) {
	return wire.Started{}, errTodo
}

// List returns all commands that dsec-init knows.
func (c *Conn) List(ctx context.Context) ([]wire.CommandStatus, error) { return nil, errTodo }

// Resume makes dsec-init send a command's output from the offset on, and its exit.
func (c *Conn) Resume(ctx context.Context, command string, offset int64) error { return errTodo }

// Ack says that every byte below offset is stored: dsec-init forgets them. It only queues.
func (c *Conn) Ack(command string, offset int64) {}

// Release says that the exit is recorded: dsec-init forgets the command. It only queues.
func (c *Conn) Release(command string) {}

// Input writes to a command's stdin or terminal and returns when the bytes were written. With eof, stdin is
// closed after data. data is at most 256 KiB.
func (c *Conn) Input(ctx context.Context, command string, data []byte, eof bool) error {
	return errTodo
}

// Signal sends a signal to the leader; with tree to every process of its group (session leader's process
// group and descendants in VMs).
func (c *Conn) Signal(ctx context.Context, command string, sig int32, tree bool) error {
	return errTodo
}

// Resize sets a terminal's size.
func (c *Conn) Resize(ctx context.Context, command string, columns, rows uint16) error {
	return errTodo
}

// OpenSession starts a stateful shell in the group; CloseSession ends it with its whole tree.
func (c *Conn) OpenSession(ctx context.Context, s *wire.OpenSession, group []*os.File) error {
	return errTodo
}
func (c *Conn) CloseSession(ctx context.Context, session string) error { return errTodo }

// Files. user "" = the sandbox's default user.

func (c *Conn) Stat(ctx context.Context, path, user string, follow bool) (wire.FileInfo, error) {
	return wire.FileInfo{}, errTodo
}

// ListDir lists at most max entries down to depth; truncated tells that there were more.
func (c *Conn) ListDir(ctx context.Context, path, user string, depth, max int) (files []wire.FileInfo, truncated bool, err error) {
	return nil, false, errTodo
}
func (c *Conn) Mkdir(ctx context.Context, path, user string, parents bool, mode uint32) error {
	return errTodo
}
func (c *Conn) Rename(ctx context.Context, from, to, user string) error { return errTodo }
func (c *Conn) Remove(ctx context.Context, path, user string, recursive, force bool) error {
	return errTodo
}

// OpenRead streams a file from offset, at most length bytes (length < 0 = to the end). size is the file's.
func (c *Conn) OpenRead(ctx context.Context, path, user string, offset, length int64) (r io.ReadCloser, info wire.FileInfo, err error) {
	return nil, wire.FileInfo{}, errTodo
}

// Writer takes a stream. Commit makes it visible at once and whole; Close without Commit leaves nothing.
type Writer interface {
	io.Writer
	Commit(ctx context.Context) error
	Close() error
}

// OpenWrite writes a file atomically (temporary file beside it, then rename).
func (c *Conn) OpenWrite(ctx context.Context, o *wire.OpenWrite) (Writer, error) { return nil, errTodo }

// OpenTar streams a tar of the tree at path; Unpack takes a tar and unpacks it beneath path (files of the
// archive never leave it: absolute names, "..", and symbolic links on the way are refused or confined).
func (c *Conn) OpenTar(ctx context.Context, path, user string) (io.ReadCloser, error) {
	return nil, errTodo
}
func (c *Conn) Unpack(ctx context.Context, path, user string) (Writer, error) { return nil, errTodo }

// DialPort connects to a TCP port on the sandbox's loopback.
func (c *Conn) DialPort(ctx context.Context, port uint16) (net.Conn, error) { return nil, errTodo }
