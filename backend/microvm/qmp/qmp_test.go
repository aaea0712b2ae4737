package qmp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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
