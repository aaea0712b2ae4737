package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/opendsec/dsec/internal/tcptunnel"
)

// Dial connects to a TCP port on the sandbox's loopback.
func (c *Client) Dial(ctx context.Context, id string, port uint16) (net.Conn, error) {
	return c.tunnel(ctx, tcptunnel.Request{SandboxID: url.PathEscape(id), Port: port})
}

// DialScreen connects to the screen of a full VM, in the RFB protocol of VNC.
func (c *Client) DialScreen(ctx context.Context, id string) (net.Conn, error) {
	return c.tunnel(ctx, tcptunnel.Request{SandboxID: url.PathEscape(id), Path: "screen/vnc"})
}

func (c *Client) tunnel(ctx context.Context, r tcptunnel.Request) (net.Conn, error) {
	addr := c.base.Host
	if c.base.Port() == "" {
		addr = net.JoinHostPort(addr, map[string]string{"http": "80", "https": "443"}[c.base.Scheme])
	}
	d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}
	var nc net.Conn
	var err error
	if c.base.Scheme == "https" {
		nc, err = (&tls.Dialer{NetDialer: &d, Config: &tls.Config{NextProtos: []string{"http/1.1"}}}).DialContext(ctx, "tcp", addr)
	} else {
		nc, err = d.DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, c.explain(err)
	}
	r.Host, r.Header = c.base.Host, http.Header{}
	r.Header.Set("Authorization", "Bearer "+c.o.Config.Key)
	nc, err = tcptunnel.Dial(ctx, nc, r)
	var refused *tcptunnel.Refused
	if errors.As(err, &refused) {
		var we wireError
		if json.Unmarshal(refused.Body, &we) == nil && we.Code != "" {
			return nil, we.err()
		}
	}
	return nc, err
}

// PortURL is an address of a port on the ports' own origin, with a token that opens this port only.
type PortURL struct {
	URL       string    `json:"url"`
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// PortURL makes an address that works for the given time (0 = 12 hours).
func (c *Client) PortURL(ctx context.Context, id string, port uint16, life time.Duration) (PortURL, error) {
	q := url.Values{}
	if life > 0 {
		q.Set("seconds", strconv.Itoa(int(life.Seconds())))
	}
	resp, err := c.do(ctx, http.MethodGet, sandboxPath(id, fmt.Sprintf("tcp/%d/url", port)), q, nil)
	if err != nil {
		return PortURL{}, err
	}
	defer resp.Body.Close()
	var out PortURL
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return PortURL{}, fmt.Errorf("read port address: %w", err)
	}
	return out, nil
}
