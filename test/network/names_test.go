package network

import (
	"fmt"
	"testing"
)

// testNames: names as programs in a sandbox expect them: localhost, search domains, /etc/hosts. None of them opens anything.
func testNames(t *testing.T, w *world, s *sites) {
	b := w.box(t, "shared.example")
	defer b.stop()
	b.sh("getent ahostsv4 localhost | grep -qw 127.0.0.1 && getent ahostsv6 localhost | grep -qw ::1 && getent hosts 127.0.0.1 | grep -qw localhost")
	// A short name is that of the first search domain where there is one.
	b.sh("echo search nowhere.example example >>/etc/resolv.conf")
	if got, want := b.sh("getent ahostsv4 shared | sed -n '1s/ .*//p'"), s.shared.V4[0].String(); got != want {
		t.Errorf("by its search domain it is %q, want %s", got, want)
	}
	b.reach("https://shared.example/", "200 site=shared.example host=shared.example")
	b.reach("http://pypi/", "name")
	// /etc/hosts comes first, and leads to what is closed, or is not what the address was answered for.
	b.sh(fmt.Sprintf("printf '%%s pypi.org\n%%s tenant.example\n' %s %s >>/etc/hosts", s.pypi.V4[0], s.shared.V4[0]))
	b.reach("https://pypi.org/", "denied")
	b.reach("https://tenant.example/", "tls TLSV1_ALERT_ACCESS_DENIED")
	b.reach("http://tenant.example/", "<HTTPError 403: 'Forbidden'>")
	if n := len(s.tenant.Requests()); n != 0 {
		t.Errorf("the other tenant was reached, %d times", n)
	}
}

// testPing: echoes go where a rule says so, and nowhere else.
func testPing(t *testing.T, w *world, s *sites) {
	b := w.box(t, s.shared.V4[0].String()+"/icmp", s.shared.V6[0].String()+"/icmp", s.echo.at.String()+":7000/tcp")
	defer b.stop()
	for _, a := range s.shared.Addrs() {
		b.reach("ping "+a.String(), "pong")
		b.reach("tcp "+addr(a, "443"), "denied")
	}
	b.reach("tcp "+addr(s.echo.at, "7000"), "open")
	for _, a := range s.pypi.Addrs() {
		b.reach("ping "+a.String(), "prohibited", "unreachable")
	}
	b.set("none")
	b.reach("ping "+s.shared.V4[0].String(), "prohibited", "unreachable")
}
