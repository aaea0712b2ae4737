package main

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/cluster/e2b"
	"github.com/opendsec/dsec/cluster/iam"
)

const (
	defaultE2BListen = "127.0.0.1:7779"
	off              = "off"
)

// newE2BDoor makes the door for E2B clients, a part of the apiserver role.
func newE2BDoor(f *serveFlags, d stateDir, s *apiserver.Server, keys *iam.Store, at net.Addr, log *slog.Logger) http.Handler {
	return e2b.New(e2b.Options{
		API: s.Inside(), WithKey: apiserver.WithKey, Keys: keys, Dial: s.DialPort,
		Domain: e2bDomain(f.e2bDomain, at.String()), Scratch: d.path("e2b"), Log: log.With("door", "e2b"),
	})
}

// e2bDomain is below which clients find ports: *.localhost is loopback to browsers and resolvers.
func e2bDomain(asked, addr string) string {
	if asked != "" {
		return asked
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "localhost"
	}
	return net.JoinHostPort("localhost", port)
}

// listenE2B listens for E2B clients, where the flag says so or beside the API; nil = off.
func (n *node) listenE2B(before string) (*net.TCPListener, error) {
	switch addr := n.f.e2bListen; {
	case addr == off:
		return nil, nil
	case addr != "":
		return n.listen(addr, before)
	case n.f.listen == defaultListen:
		n.f.e2bListen = defaultE2BListen
	default:
		host, _, err := net.SplitHostPort(n.f.listen)
		if err != nil {
			return nil, fmt.Errorf("address %q: want HOST:PORT", n.f.listen)
		}
		n.f.e2bListen = net.JoinHostPort(host, "0")
	}
	return n.listen(n.f.e2bListen, before)
}

func e2bURL(ln *net.TCPListener) string {
	if ln == nil {
		return ""
	}
	return "http://" + ln.Addr().String()
}

// e2bUsage are the lines of `dsec up` for E2B clients.
func e2bUsage(url, domain string) string {
	if url == "" {
		return ""
	}
	return fmt.Sprintf("E2B clients: export E2B_API_URL=%s E2B_SANDBOX_URL=%s E2B_DOMAIN=%s E2B_API_KEY=$(dsec key create --e2b)\n",
		url, url, e2bDomain(domain, strings.TrimPrefix(url, "http://")))
}
