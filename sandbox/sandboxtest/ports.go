package sandboxtest

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// echoServer listens on a port of the sandbox's loopback and sends back what it gets.
const echoServer = `use strict; use IO::Socket::INET; $| = 1;
my $l = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], ReuseAddr => 1) or die $!;
print "listening\n";
while (my $c = $l->accept) { my $b; while (sysread($c, $b, 65536)) { syswrite($c, $b) } close $c }`

func (s *suite) ports(t *testing.T) {
	if !s.caps.Ports {
		t.Skip("the driver has no ports")
	}
	b := s.Create(t, nil)
	port := 7
	if s.caps.Real {
		port = 8123
		st := b.Start(&dsecv1.StartCommandRequest{Command: &dsecv1.CommandSpec{Argv: []string{"perl", "-e", echoServer, strconv.Itoa(port)}}})
		defer st.Close()
		st.Until("listening")
	}
	t.Run("Echo", func(t *testing.T) {
		c, r := s.tunnel(t, b, port)
		defer c.Close()
		message := make([]byte, 1<<20)
		for i := range message {
			message[i] = byte(i * 7)
		}
		go func() {
			_, _ = c.Write(message)
			_ = c.(*net.UnixConn).CloseWrite()
		}()
		back, err := io.ReadAll(r)
		if err != nil || string(back) != string(message) {
			t.Errorf("%d bytes came back, %v", len(back), err)
		}
	})
	t.Run("Refusals", func(t *testing.T) {
		for what, want := range map[string]int{"tcp/9": 503, "tcp/0": 400, "tcp/99999": 400} {
			req, _ := http.NewRequestWithContext(b.Ctx, "GET", s.URL+"/v1/sandboxes/"+b.ID+"/"+what, nil)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "dsec-tcp")
			resp, err := s.HTTP.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s: %d, want %d", what, resp.StatusCode, want)
			}
		}
		if status, _ := b.Do("GET", "tcp/"+strconv.Itoa(port), nil); status != 400 {
			t.Errorf("without upgrade: %d", status)
		}
	})
}

// tunnel upgrades a connection to a port.
func (s *suite) tunnel(t *testing.T, b *Box, port int) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.DialTimeout("unix", s.Socket, Timeout)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(Timeout))
	_, _ = io.WriteString(c, "GET /v1/sandboxes/"+b.ID+"/tcp/"+strconv.Itoa(port)+" HTTP/1.1\r\nHost: edge\r\nConnection: Upgrade\r\nUpgrade: dsec-tcp\r\n\r\n")
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", resp, err)
	}
	return c, r
}
