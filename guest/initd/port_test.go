package initd_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"context"

	"github.com/opendsec/dsec/guest/wire"
)

func TestPorts(t *testing.T) {
	b := newBox(t, nil)
	_, err := b.c.DialPort(b.ctx, 8000)
	b.wantCode(err, wire.CodeRefused)
	b.start(wire.Start{Shell: "mkdir /web; cd /web; head -c 30000000 /dev/zero > big; echo hi > hi; exec python3 -u -m http.server --bind 127.0.0.1 8000"})
	six := b.start(wire.Start{Shell: "exec python3 -u -c 'import socket;s=socket.create_server((\"::1\",9),family=socket.AF_INET6);print(1);c=s.accept()[0];d=c.recv(5);c.sendall(d+b\"!\");c.shutdown(1);print(len(c.recv(9)))'"})
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return b.dial(8000) },
	}}
	for _, c := range []struct {
		path string
		size int64
	}{{"hi", 3}, {"big", 30000000}, {"hi", 3}} {
		resp, err := client.Get("http://sandbox/" + c.path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if n != c.size || err != nil {
			t.Errorf("%s: %d bytes, %v", c.path, n, err)
		}
	}
	client.CloseIdleConnections()

	b.until(six, "1\n")
	nc, err := b.dial(9)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(nc, "12345")
	nc.SetReadDeadline(time.Now().Add(time.Minute))
	if line, err := bufio.NewReader(nc).ReadString('x'); line != "12345!" || err != io.EOF {
		t.Errorf("%q %v", line, err)
	}
	if _, err := nc.Write([]byte("after")); err != nil {
		t.Error(err)
	}
	nc.Close() // what was written arrives all the same
	if res := b.wait(six); !strings.Contains(string(res.All), "5\n") {
		t.Errorf("%q", res.All)
	}

	// A deadline ends a read; a server that never answers keeps nothing else.
	b.start(wire.Start{Shell: "exec python3 -c 'import socket,time;s=socket.create_server((\"127.0.0.1\",10));c=s.accept();time.sleep(1000)'"})
	if nc, err = b.dial(10); err != nil {
		t.Fatal(err)
	}
	nc.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := nc.Read(make([]byte, 1)); err != os.ErrDeadlineExceeded {
		t.Error(err)
	}
	nc.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	n, err := io.Copy(struct{ io.Writer }{nc}, &pattern{})
	if err != os.ErrDeadlineExceeded {
		t.Error(n, err)
	}
	b.sh("true")
	nc.Close()
}

// dial waits for the server to listen.
func (b *box) dial(port uint16) (net.Conn, error) {
	for {
		nc, err := b.c.DialPort(b.ctx, port)
		if code(err) != wire.CodeRefused || b.ctx.Err() != nil {
			return nc, err
		}
		b.sh("true")
	}
}
