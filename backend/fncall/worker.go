package fncall

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// worker is one worker process and its socket.
type worker struct {
	cmd  *exec.Cmd
	conn net.Conn
	log  func(string)

	mu      sync.Mutex
	next    uint64
	calls   map[uint64]chan *cell.Reply
	writing []byte // for one writer at a time
	slots   int
	dead    error
	done    chan struct{}
}

// startTimeout bounds how long a worker may take to begin.
const startTimeout = 30 * time.Second

// startWorker starts the process; it returns when it is ready for calls.
func startWorker(binary string, cfg *cell.Config, log func(string)) (*worker, error) {
	ours, theirs, err := linux.StreamPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return nil, err
	}
	w := &worker{conn: conn, log: log, calls: map[uint64]chan *cell.Reply{}, done: make(chan struct{})}
	w.cmd = exec.Command(binary, "cells")
	w.cmd.Stderr = os.Stderr
	w.cmd.ExtraFiles = []*os.File{theirs}
	w.cmd.Env = []string{"GOMAXPROCS=1", "GOGC=200"}
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := w.cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start worker: %w", err)
	}
	if err = w.configure(cfg); err != nil {
		_ = w.cmd.Process.Kill()
		conn.Close()
		_ = w.cmd.Wait()
		return nil, err
	}
	go w.read()
	return w, nil
}

func (w *worker) configure(cfg *cell.Config) error {
	_ = w.conn.SetDeadline(time.Now().Add(startTimeout))
	defer w.conn.SetDeadline(time.Time{})
	// What runs in it is killed before the node's own processes where the whole machine runs out of memory.
	_ = linux.WritePlain(fmt.Sprintf("/proc/%d/oom_score_adj", w.cmd.Process.Pid), "500")
	if _, err := w.conn.Write(cell.AppendFrame(nil, cell.MsgConfig, cfg.Append)); err != nil {
		return fmt.Errorf("configure worker: %w", err)
	}
	msg, body, err := cell.ReadFrame(w.conn)
	if err != nil {
		return fmt.Errorf("worker does not begin: %w", err)
	}
	if msg != cell.MsgReady || len(body) > 0 {
		return fmt.Errorf("worker: %s", body)
	}
	return nil
}

// read hands replies out until the worker ends.
func (w *worker) read() {
	r := bufio.NewReaderSize(w.conn, 64<<10)
	var err error
	for err == nil {
		var msg byte
		var body []byte
		if msg, body, err = cell.ReadFrame(r); err != nil {
			break
		}
		switch msg {
		case cell.MsgReply:
			var p *cell.Reply
			if p, err = cell.ParseReply(body); err == nil {
				w.deliver(p)
			}
		case cell.MsgLog:
			w.log(string(body))
		}
	}
	w.conn.Close()
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) { // it went by itself: how, is worth knowing
		werr := w.cmd.Wait()
		w.log(fmt.Sprintf("it ended by itself: %v (%v)", werr, err))
	} else {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
	w.mu.Lock()
	w.dead = fmt.Errorf("the worker ended: %w", err)
	calls := w.calls
	w.calls = nil
	w.mu.Unlock()
	for _, ch := range calls {
		close(ch)
	}
	close(w.done)
}

func (w *worker) deliver(p *cell.Reply) {
	w.mu.Lock()
	ch := w.calls[p.ID]
	delete(w.calls, p.ID)
	w.mu.Unlock()
	if ch != nil {
		ch <- p
	}
}

// want asks for n slots.
func (w *worker) want(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n > w.slots && w.dead == nil {
		w.slots = n
		w.write(cell.MsgWant, cell.AppendNumber(uint64(n)))
	}
}

// write sends a message; w.mu is held. A worker that reads nothing for long is ended.
func (w *worker) write(msg byte, body func([]byte) []byte) {
	w.writing = cell.AppendFrame(w.writing[:0], msg, body)
	_ = w.conn.SetWriteDeadline(time.Now().Add(startTimeout))
	if _, err := w.conn.Write(w.writing); err != nil {
		w.conn.Close() // read sees it
	}
	if cap(w.writing) > 1<<20 {
		w.writing = nil
	}
}

// errWorker says that a call's worker ended: nobody can say how far the call came.
var errWorker = errors.New("the worker of this runtime ended")

// call runs a call and waits for it. The context's end kills it, and is still waited for.
func (w *worker) call(ctx context.Context, c *cell.Call) (*cell.Reply, error) {
	ch := make(chan *cell.Reply, 1)
	w.mu.Lock()
	if w.dead != nil {
		w.mu.Unlock()
		return nil, errWorker
	}
	w.next++
	c.ID = w.next
	w.calls[c.ID] = ch
	w.write(cell.MsgCall, c.Append)
	w.mu.Unlock()
	// The worker keeps the wall time; this is for a worker that does not.
	t := time.NewTimer(time.Duration(c.Limits.WallMicros)*time.Microsecond + startTimeout)
	defer t.Stop()
	done := ctx.Done()
	for {
		select {
		case p, ok := <-ch:
			if !ok {
				return nil, errWorker
			}
			return p, nil
		case <-done:
			done = nil
			w.mu.Lock()
			if w.dead == nil {
				w.write(cell.MsgCancel, cell.AppendNumber(c.ID))
			}
			w.mu.Unlock()
		case <-t.C:
			w.close()
			return nil, fmt.Errorf("%w: it did not answer", errWorker)
		}
	}
}

// close ends the worker and everything that runs in it.
func (w *worker) close() {
	w.conn.Close()
	<-w.done
}

// toFailure is what an end means; nil for one that was well.
func toFailure(p *cell.Reply, l *cell.Limits) *sandbox.Failure {
	switch p.End {
	case cell.Exited:
		if p.Code != 0 && p.DiskFull {
			return sandbox.NewFailure(sandbox.KindDiskFull, "the call's files reached their limit (%d files, %d bytes) and it exited with %d", l.Files, l.FileBytes, p.Code)
		}
		return sandbox.NewFailure(sandbox.KindExited, "exited with %d", p.Code)
	case cell.Signalled:
		if p.DiskFull {
			return sandbox.NewFailure(sandbox.KindDiskFull, "the call's files reached their limit (%d files, %d bytes); signal %d ended it", l.Files, l.FileBytes, p.Signal)
		}
		return sandbox.NewFailure(sandbox.KindSignalled, "signal %d (%v)", p.Signal, syscall.Signal(p.Signal))
	case cell.CPUTime:
		return sandbox.NewFailure(sandbox.KindTimedOut, "used its CPU time of %v up", time.Duration(l.CPUMicros)*time.Microsecond)
	case cell.WallTime:
		return sandbox.NewFailure(sandbox.KindTimedOut, "ran longer than %v", time.Duration(l.WallMicros)*time.Microsecond)
	case cell.OutputFull:
		return sandbox.NewFailure(sandbox.KindOutputLimit, "wrote more than %d bytes of output", l.Output)
	case cell.OutOfMemory:
		return sandbox.NewFailure(sandbox.KindOOMKilled, "used its memory of %d MiB up", l.Memory>>20)
	case cell.Cancelled:
		return sandbox.NewFailure(sandbox.KindKilled, "given up by who asked for it")
	case cell.CannotStart:
		return sandbox.NewFailure(sandbox.KindCannotStart, "%s", p.Message)
	}
	return sandbox.NewFailure(sandbox.KindInternal, "%s", p.Message)
}
