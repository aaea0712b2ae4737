package qmp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// serve answers the lines of one session with those of a script.
func serve(t *testing.T, c net.Conn, answers ...string) {
	fmt.Fprintln(c, `{"QMP": {"version": {}, "capabilities": []}}`)
	s := bufio.NewScanner(c)
	for _, a := range answers {
		if !s.Scan() {
			t.Errorf("the session ended early: %v", s.Err())
			return
		}
		fmt.Fprintln(c, a)
	}
	c.Close()
}

// TestSession: answers find their commands, refusals are errors, events are told, and the end ends everything.
func TestSession(t *testing.T) {
	a, b := net.Pipe()
	go serve(t, b, `{"return": {}, "id": 1}`, `{"event": "SHUTDOWN", "data": {"guest": true}}`+"\n"+`{"return": {"status": "shutdown"}, "id": 2}`,
		`{"error": {"class": "GenericError", "desc": "no"}, "id": 3}`)
	events := make(chan Event, 1)
	c, err := Open(t.Context(), a, func(e Event) { events <- e })
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Status string }
	if err := c.Do(t.Context(), "query-status", nil, &s); err != nil || s.Status != "shutdown" {
		t.Errorf("status %q, %v", s.Status, err)
	}
	if e := <-events; e.Name != "SHUTDOWN" {
		t.Errorf("event %+v", e)
	}
	var refused *Error
	if err := c.Do(t.Context(), "stop", nil, nil); !errors.As(err, &refused) || refused.Desc != "no" {
		t.Errorf("refusal: %v", err)
	}
	<-c.Done()
	if err := c.Do(t.Context(), "cont", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
}

// TestSilence: a monitor that says nothing costs no more than the caller's patience; one that talks nonsense ends.
func TestSilence(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	go func() { _, _ = io.Copy(io.Discard, b) }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, a, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
	a, b = net.Pipe()
	go func() {
		fmt.Fprintln(b, "{nonsense")
		_, _ = io.Copy(io.Discard, b)
	}()
	if _, err := Open(t.Context(), a, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("nonsense: %v", err)
	}
}

// TestPass: a file goes along with the command that is about it.
func TestPass(t *testing.T) {
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/s", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan *os.File, 1)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		b, oob := make([]byte, 4096), make([]byte, 64)
		if _, err := c.Read(b); err != nil {
			t.Error(err)
			return
		}
		fmt.Fprintln(c, `{"return": {}, "id": 1}`)
		_, n, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil {
			t.Error(err)
			return
		}
		m, err := syscall.ParseSocketControlMessage(oob[:n])
		if err != nil || len(m) != 1 {
			t.Errorf("messages %v, %v", m, err)
			return
		}
		fds, err := syscall.ParseUnixRights(&m[0])
		if err != nil || len(fds) != 1 {
			t.Errorf("descriptors %v, %v", fds, err)
			return
		}
		got <- os.NewFile(uintptr(fds[0]), "passed")
		fmt.Fprintln(c, `{"return": {}, "id": 2}`)
	}()
	nc, err := net.Dial("unix", dir+"/s")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(t.Context(), nc, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := c.Pass(t.Context(), "getfd", map[string]any{"fdname": "x"}, w); err != nil {
		t.Fatal(err)
	}
	w.Close() // the caller's
	p := <-got
	if _, err := p.WriteString("hello"); err != nil {
		t.Error(err)
	}
	p.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}
