package main

import (
	"encoding/json"
	"io"
	"net"
	"time"
)

// upSocket answers whoever connects with what `dsec up` runs. The file with the same, run/up.json, can be older: it is
// not written on a full disk.
func (d stateDir) upSocket() string { return d.path("run", "up.sock") }

const (
	// statusWait bounds one answer of the socket.
	statusWait = 2 * time.Second
	// maxStatus bounds its length, bytes.
	maxStatus = 1 << 20
)

// serveStatus answers at the socket until stop is called, which waits.
func (n *node) serveStatus() (stop func(), err error) {
	ln, err := listenUnix(n.d.upSocket())
	if err != nil {
		return nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			n.mu.Lock()
			b, err := json.Marshal(n.state)
			n.mu.Unlock()
			if err == nil {
				_ = c.SetDeadline(time.Now().Add(statusWait))
				_, _ = c.Write(b)
			}
			c.Close()
		}
	}()
	return func() {
		ln.Close()
		<-done
	}, nil
}

// askUp returns what `dsec up` runs by its own word, else what it wrote last.
func (d stateDir) askUp() (upState, error) {
	c, err := net.DialTimeout("unix", d.upSocket(), statusWait)
	if err != nil {
		return d.readUp()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(statusWait))
	b, err := io.ReadAll(io.LimitReader(c, maxStatus))
	var s upState
	if err != nil || json.Unmarshal(b, &s) != nil {
		return d.readUp()
	}
	return s, nil
}
