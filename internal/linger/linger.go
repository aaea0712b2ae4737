// Package linger ends requests that are answered before their body was read to its end.
//
// A server that closes a connection in which something waits to be read resets it, and the reset may reach the client before the
// answer does: who sent a large archive learns that the connection broke, in place of what is wrong with it. So what is left is
// read and dropped, for a while. A client that reads the answer and goes away ends that.
package linger

import (
	"io"
	"net/http"
	"time"
)

// within bounds the reading, and quiet the waiting for more: who has stopped sending may be waiting for the answer's end.
const within, quiet = 30 * time.Second, 2 * time.Second

// Begin prepares an answer that may come before the request's body was read. It must precede the answer.
func Begin(w http.ResponseWriter) {
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 can anyway
	// Of a body that was refused on its way, what was not read must not be looked at as another request.
	w.Header().Set("Connection", "close")
}

// End sends what was answered, and reads what is left of the body.
func End(w http.ResponseWriter, body io.Reader) {
	rc := http.NewResponseController(w)
	if rc.Flush() != nil {
		return // nobody at its end
	}
	buf := make([]byte, 64<<10)
	for end := time.Now().Add(within); time.Now().Before(end); {
		if rc.SetReadDeadline(time.Now().Add(quiet)) != nil {
			return // no connection
		}
		if _, err := body.Read(buf); err != nil {
			return
		}
	}
}
