package network

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// testForged: packets with another's address do not leave, whichever socket sends them.
func testForged(t *testing.T, w *world, s *sites) {
	b := w.box(t, "203.0.113.0/24:7001/udp")
	defer b.stop()
	for len(s.echo.datagrams) > 0 {
		<-s.echo.datagrams
	}
	got := b.sh("TAKEN=1 reach forge " + addr(s.echo.at, "7001"))
	if !strings.HasPrefix(got, "true\n") {
		t.Fatalf("the true datagram: %q", got)
	}
	t.Logf("the kernel inside has %s", strings.TrimPrefix(got, "true\n"))
	// They went the same way, so what arrives before the true one is all that ever does.
	for d := ""; d != "true"; {
		if d = <-s.echo.datagrams; d == "forged" {
			t.Error("a forged datagram has arrived")
		}
	}
	b.reach("udp "+addr(s.echo.at, "7002"), "denied", "refused")
}

// testNested: namespaces made inside gain nothing.
func testNested(t *testing.T, w *world, s *sites) {
	b := w.box(t, "pypi")
	defer b.stop()
	for _, outer := range []string{"unshare -n", "unshare -rn", "unshare -r", "nsenter -t 1 -n", "env"} {
		for _, a := range []string{addr(s.pypi.V4[0], "7000"), addr(s.shared.V6[0], "443"), addr(w.link.V4, "22")} {
			if got := b.sh(outer + " reach tcp " + a + " 2>&1 || true"); got == "open" {
				t.Errorf("%s reaches %s", outer, a)
			}
		}
	}
	if got := b.sh("ip link add dummy0 type dummy 2>&1 || ip addr add 203.0.113.9/32 dev lo 2>&1 || true; reach tcp " + addr(s.pypi.V4[0], "7000")); !b.denied(got[strings.LastIndexAny(got, " \n")+1:]) {
		t.Errorf("with interfaces of its own: %q", got)
	}
}

// testEvents: what is denied and what is reached is told.
func testEvents(t *testing.T, w *world, s *sites) {
	b := w.box(t, "pypi", "!npm")
	defer b.stop()
	b.reach("https://registry.npmjs.org/", "name")
	e := b.event("of a denied name", func(e *dsecv1.Event) bool { return e.GetType() == "network_denied_name" })
	if a := e.GetAttributes(); a["name"] != "registry.npmjs.org" || !strings.Contains(a["rule"], "npm") {
		t.Errorf("a denied name: %v", e)
	}
	b.reach("tcp "+addr(s.shared.V4[0], "7000"), "denied")
	b.event("of a denied address", func(e *dsecv1.Event) bool {
		a := e.GetAttributes()
		return e.GetType() == "network_denied" && a["remote"] == s.shared.V4[0].String()+":7000" && a["protocol"] == "tcp"
	})
	b.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")
	e = b.event("of a checked connection", func(e *dsecv1.Event) bool {
		return e.GetType() == "network_ended" && e.GetAttributes()["name"] == "pypi.org"
	})
	if a := e.GetAttributes(); a["sent"] == "" || a["received"] == "" || a["remote"] == "" {
		t.Errorf("a checked connection: %v", e)
	}
	b.sh("reach sni " + s.pypi.V4[0].String() + " tenant.example")
	e = b.event("of a name that is not the allowed one", func(e *dsecv1.Event) bool {
		return e.GetType() == "network_denied" && e.GetAttributes()["name"] == "tenant.example"
	})
	if e.GetAttributes()["remote"] != s.pypi.V4[0].String()+":443" {
		t.Errorf("a wrong name: %v", e)
	}
	// More than anybody reads is counted.
	b.sh("python3 -c 'import socket\nfor i in range(300):\n  try: socket.getaddrinfo(f\"n{i}.denied.example\", 443)\n  except OSError: pass'")
	eventually(t, "an event that counts what was left out", func() bool {
		b.reach("https://denied.example/", "name") // the next event tells
		for _, e := range b.events() {
			if e.GetAttributes()["left_out"] != "" {
				return true
			}
		}
		return false
	})
}

// testPorts: a port inside is reached through the API server alone.
func testPorts(t *testing.T, w *world, _ *sites) {
	b := w.box(t, "pypi")
	defer b.stop()
	b.sh("mkdir -p /tmp/www && echo inside >/tmp/www/index.html && cd /tmp/www && { python3 -m http.server 8000 >/dev/null 2>&1 & } && until reach http://127.0.0.1:8000/ | grep -q 200; do :; done")
	c, err := b.Client.Dial(t.Context(), b.id, 8000)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://inside/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	if err := req.Write(c); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !strings.HasSuffix(string(got), "inside\n") {
		t.Errorf("%q, %v", got, err)
	}
}
