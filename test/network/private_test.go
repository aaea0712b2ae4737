package network

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// testPrivate: sandboxes that name the same private network reach each other by name, and nobody else does.
func testPrivate(t *testing.T, w *world, s *sites) {
	db := w.made(t, &dsecv1.SandboxSpec{PrivateNetwork: "job1", NetworkName: "db"})
	web := w.made(t, &dsecv1.SandboxSpec{PrivateNetwork: "job1", Hostname: "Web.example.org", NetworkRules: rules([]string{"pypi"})})
	other := w.made(t, &dsecv1.SandboxSpec{PrivateNetwork: "job2", NetworkName: "other"})
	lone := w.box(t, "open")
	for _, b := range []*box{web, other, lone} {
		defer b.stop()
	}
	const serve = `nohup python3 -c '
import socket, sys
l = socket.create_server(("::", 5432), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    c, _ = l.accept()
    while True:
        b = c.recv(100)
        if not b: break
        c.sendall(b)
    c.close()' >/dev/null 2>&1 & until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 5432), 1)' 2>/dev/null; do sleep 0.02; done; reach self 4; reach self 6`
	at := strings.Fields(db.sh(serve))
	web.sh(serve)
	ask := func(b *box, name string) string {
		return b.sh("getent ahosts " + name + " | awk '{print $1}' | sort -u | tr '\\n' ' '")
	}

	// By name and by address, both ways, both families; the id stands for a name where there is none.
	if got := ask(web, "db"); got == "" || !strings.Contains(got+" ", at[0]+" ") {
		t.Errorf("db is %q, want %q", got, at)
	}
	for _, to := range append(at, "db", "DB.") {
		web.reach("tcp "+to+" 5432", "open")
	}
	db.reach("tcp web 5432", "open")
	db.reach("https://pypi.org/", "name") // its rules are its own: none
	web.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")

	// Nobody else knows the name, or reaches the address.
	for _, b := range []*box{other, lone} {
		if got := ask(b, "db"); got != "" {
			t.Errorf("outside, db is %q", got)
		}
		for _, to := range at {
			b.reach("tcp "+to+" 5432", "denied")
		}
	}
	if got := ask(web, "other"); got != "" {
		t.Errorf("the name of another network is %q", got)
	}
	if i := db.info().GetNetwork(); i.GetPrivateNetwork() != "job1" || i.GetNetworkName() != "db" {
		t.Errorf("info: %v", i)
	}

	// Rules change, and the edge is killed: members stay members.
	web.set("none")
	web.reach("tcp db 5432", "open")
	w.killEdge(t)
	web.explain("pypi.org", 443, false) // waits for the edge
	web.reach("tcp db 5432", "open")
	web.reach("https://pypi.org/", "name")
	lone.reach("tcp "+at[0]+" 5432", "denied")

	// Who is gone is not known any more; several may have a name.
	db.stop()
	web.sh("while getent hosts db; do sleep 0.02; done") // its parts are taken away after its end
	web.reach("tcp "+at[0]+" 5432", "denied")
	one := w.made(t, &dsecv1.SandboxSpec{PrivateNetwork: "job1", NetworkName: "db"})
	two := w.made(t, &dsecv1.SandboxSpec{PrivateNetwork: "job1", NetworkName: "db"})
	defer one.stop()
	defer two.stop()
	if got := strings.Fields(web.sh("getent ahostsv4 db | awk '{print $1}' | sort -u")); len(got) != 2 {
		t.Errorf("two that are called db have the addresses %q", got)
	}

	_, err := w.Client.Create(t.Context(), &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: base}, PrivateNetwork: "job1", NetworkName: "pypi.org"}})
	if connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a name with dots: %v", err)
	}
}
