package guesttest

import (
	"context"
	"fmt"
	"sync"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
)

// Recorder is a Handler that keeps what it is told, and acknowledges it.
type Recorder struct {
	mu       sync.Mutex
	changed  sync.Cond
	conn     *aether.Conn
	hold     bool // do not acknowledge
	commands map[string]*Result
	sessions map[string]wire.Exit
	closed   error
	faults   []string
}

// Result is what is known of one command.
type Result struct {
	Bytes  map[wire.Stream][]byte
	All    []byte
	End    int64 // offset after the last byte received
	Exit   wire.Exit
	Ended  bool
	Exits  int
	Chunks int
}

// NewRecorder returns a Recorder for a connection.
func NewRecorder(c *aether.Conn) *Recorder {
	r := &Recorder{conn: c, commands: make(map[string]*Result), sessions: make(map[string]wire.Exit)}
	r.changed.L = &r.mu
	return r
}

// Hold switches acknowledgements off or on.
func (r *Recorder) Hold(hold bool) {
	r.mu.Lock()
	r.hold = hold
	r.mu.Unlock()
}

// Follow returns a Recorder for a successor's connection that continues with what this one has.
func (r *Recorder) Follow(c *aether.Conn) *Recorder {
	n := NewRecorder(c)
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, res := range r.commands {
		copied := *res
		copied.Ended = false
		n.commands[id] = &copied
	}
	return n
}

func (r *Recorder) get(id string) *Result {
	res := r.commands[id]
	if res == nil {
		res = &Result{Bytes: make(map[wire.Stream][]byte)}
		r.commands[id] = res
	}
	return res
}

// Output implements aether.Handler. An offset that does not continue what came before is a fault.
func (r *Recorder) Output(id string, offset int64, stream wire.Stream, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.get(id)
	if offset != res.End {
		r.faults = append(r.faults, fmt.Sprintf("%s: output at %d after %d", id, offset, res.End))
	}
	res.Bytes[stream] = append(res.Bytes[stream], data...)
	res.All = append(res.All, data...)
	res.End += int64(len(data))
	res.Chunks++
	if !r.hold {
		r.conn.Ack(id, res.End)
	}
	r.changed.Broadcast()
}

// Exited implements aether.Handler.
func (r *Recorder) Exited(id string, exit wire.Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	res := r.get(id)
	res.Ended, res.Exit = true, exit
	res.Exits++
	if exit.OutputEnd != res.End {
		r.faults = append(r.faults, fmt.Sprintf("%s: exit at %d, output ends at %d", id, exit.OutputEnd, res.End))
	}
	r.changed.Broadcast()
}

// SessionEnded implements aether.Handler.
func (r *Recorder) SessionEnded(id string, exit wire.Exit) {
	r.mu.Lock()
	r.sessions[id] = exit
	r.changed.Broadcast()
	r.mu.Unlock()
}

// Closed implements aether.Handler.
func (r *Recorder) Closed(err error) {
	r.mu.Lock()
	r.closed = err
	r.changed.Broadcast()
	r.mu.Unlock()
}

// Until waits until f, which is called under the lock with the command's result, is true.
func (r *Recorder) Until(ctx context.Context, id string, f func(*Result) bool) (Result, error) {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		r.changed.Broadcast()
		r.mu.Unlock()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !f(r.get(id)) {
		if r.closed != nil {
			return *r.get(id), r.closed
		}
		if ctx.Err() != nil {
			return *r.get(id), fmt.Errorf("wait for command %s: %w (so far: %q)", id, ctx.Err(), tail(r.get(id).All))
		}
		r.changed.Wait()
	}
	return *r.get(id), nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-200):] }

// Wait waits for a command's exit.
func (r *Recorder) Wait(ctx context.Context, id string) (Result, error) {
	return r.Until(ctx, id, func(res *Result) bool { return res.Ended })
}

// WaitSession waits for a session's end.
func (r *Recorder) WaitSession(ctx context.Context, id string) (wire.Exit, error) {
	var exit wire.Exit
	_, err := r.Until(ctx, "", func(*Result) bool {
		e, ok := r.sessions[id]
		exit = e
		return ok
	})
	return exit, err
}

// WaitClosed waits for the end of the connection and returns its reason.
func (r *Recorder) WaitClosed(ctx context.Context) (reason, err error) {
	_, err = r.Until(ctx, "", func(*Result) bool {
		reason = r.closed
		return reason != nil
	})
	return reason, err
}

// Forget drops what is known of a command.
func (r *Recorder) Forget(id string) {
	r.mu.Lock()
	delete(r.commands, id)
	r.mu.Unlock()
}

// Faults are the violations of the channel's promises that were seen.
func (r *Recorder) Faults() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.faults...)
}
