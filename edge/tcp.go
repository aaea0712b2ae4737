package edge

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// tcpProtocol is the upgrade that reaches a TCP port inside.
const tcpProtocol = "dsec-tcp"

// tcp connects the client with a port inside: 101, then raw bytes both ways. Each side may close its
// direction on its own. The sandbox is active while the connection lives.
func (t *transfers) tcp(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
	if err != nil || port == 0 {
		fail(w, invalid("port %.16q: want 1 to 65535", r.PathValue("port")), false)
		return
	}
	if !wantsTunnel(w, r) {
		return
	}
	b, leave, err := t.e.enter(r.Context(), r.PathValue("id"))
	if err != nil {
		fail(w, err, false)
		return
	}
	defer leave()
	if !b.backend.Capabilities().Ports {
		fail(w, fmt.Errorf("ports of a %s sandbox: %w", b.backend.Name(), sandbox.ErrUnsupported), false)
		return
	}
	conn, _, err := b.channel()
	if err != nil {
		fail(w, err, false)
		return
	}
	inside, err := conn.DialPort(r.Context(), uint16(port))
	if err != nil {
		fail(w, fmt.Errorf("port %d of sandbox %s: %w", port, b.id, err), false)
		return
	}
	t.upgrade(w, b, inside)
}

// wantsTunnel refuses a request that does not ask for the upgrade.
func wantsTunnel(w http.ResponseWriter, r *http.Request) bool {
	if strings.EqualFold(r.Header.Get("Upgrade"), tcpProtocol) {
		return true
	}
	fail(w, invalid("want the headers Connection: Upgrade and Upgrade: %s", tcpProtocol), false)
	return false
}

// upgrade joins the client's connection with one to the sandbox until both have ended.
func (t *transfers) upgrade(w http.ResponseWriter, b *box, inside net.Conn) {
	defer inside.Close()
	outside, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		fail(w, fmt.Errorf("upgrade: %w: %w", err, sandbox.ErrInvalid), false)
		return
	}
	defer outside.Close()
	_ = outside.SetDeadline(time.Time{}) // the server's own deadlines do not apply to a tunnel
	if _, err := io.WriteString(outside, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tcpProtocol+"\r\n\r\n"); err != nil {
		return
	}
	t.tunnel(b, inside, outside, buffered.Reader)
}

// tunnel copies both ways until both directions are closed, or the sandbox or the edge ends.
func (t *transfers) tunnel(b *box, inside, outside net.Conn, fromOutside io.Reader) {
	done := make(chan error, 2)
	go func() { done <- pump(inside, fromOutside) }()
	go func() { done <- pump(outside, inside) }()
	left := 2
	for open := true; open && left > 0; {
		select {
		case err := <-done:
			left--
			open = err == nil // after an end the other direction goes on, after an error it does not
		case <-b.gone:
			open = false
		case <-t.e.closing:
			open = false
		}
	}
	_ = inside.Close()
	_ = outside.Close()
	for ; left > 0; left-- {
		<-done
	}
}

// pump copies one direction and passes its end on.
func pump(dst net.Conn, src io.Reader) error {
	_, err := copyStream(dst, src)
	if err != nil {
		return err
	}
	half, ok := dst.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported // no half-close: the whole connection ends
	}
	return half.CloseWrite()
}
