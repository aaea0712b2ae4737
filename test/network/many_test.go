package network

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/networktest"
)

// TestMany: many sandboxes with networks come and go while the edge is killed; each has its own rules, and nothing is left.
func TestMany(t *testing.T) {
	w := start(t, datapath.EBPF)
	site := w.inet.Site("pypi.org", networktest.V4(2))
	var all []*box
	for range 2 {
		all = append(all, w.boxes(t, 10, base, "pypi")...)
		all = append(all, w.boxes(t, 10, base, "six.example")...)
	}
	addresses := map[string]string{}
	look := func(boxes []*box) {
		t.Helper()
		var wg sync.WaitGroup
		var mu sync.Mutex
		slots := make(chan struct{}, 4)
		for i, b := range boxes {
			line := "reach self 4"
			fetch := slow || i%3 == 0 // a page costs ten times as much
			if fetch {
				line += "; reach https://pypi.org/"
			}
			slots <- struct{}{}
			allowed := b.info().GetNetwork().GetRules()[0].GetTarget() == "pypi"
			wg.Go(func() {
				defer func() { <-slots }()
				got := b.try(line)
				own, page, _ := strings.Cut(got, "\n")
				if fetch && (allowed != strings.HasPrefix(page, "200 ") || !allowed && page != "name") {
					t.Errorf("%s, allowed %v: %q", b.id, allowed, got)
				}
				mu.Lock()
				defer mu.Unlock()
				if other := addresses[own]; other != "" && other != b.id {
					t.Errorf("%s and %s have the address %s", b.id, other, own)
				}
				addresses[own] = b.id
			})
		}
		wg.Wait()
	}
	look(all)
	if len(addresses) != len(all) {
		t.Errorf("%d addresses of %d sandboxes", len(addresses), len(all))
	}
	// Half are stopped while the edge is killed.
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, b := range all[:20] {
			b.stop()
		}
	})
	w.killEdge(t)
	wg.Wait()
	look(all[20:])
	// Slots of those that are gone are used again, by others' rules.
	clear(addresses)
	look(append(w.boxes(t, 10, base, "six.example"), all[20:30]...))
	if _, err := w.Client.Sandboxes.GetSandbox(t.Context(), &dsecv1.GetSandboxRequest{SandboxId: all[0].id}); err != nil {
		t.Errorf("one that was stopped: %v", err)
	}
	if len(site.Requests()) == 0 {
		t.Error("nobody reached the site")
	}
	w.killEdge(t) // down finds an edge that has just been killed
}

// testSecond: a host has one network for sandboxes. A second node that wants one is refused, and harms nothing.
func testSecond(t *testing.T, w *world, s *sites) {
	b := w.box(t, s.echo.at.String()+":7000/tcp", "pypi")
	defer b.stop()
	b.talk(s.echo)
	state := filepath.Join(filepath.Dir(w.state), "t")
	_, err := testkit.StartNode(t.Context(), filepath.Join(os.Getenv(binEnv), "dsec"), state, "--opt", "network=on", "--opt", "resolver=192.0.2.1", "--opt", "warm=1", "--opt", "pool=1g")
	if err == nil || !strings.Contains(err.Error(), "dsec-up already") {
		t.Errorf("a second node: %v", err)
	}
	if _, err := w.Run(t.Context(), "down", "--state", state); err != nil {
		t.Error(err)
	}
	if left, err := testkit.Leftovers(state); err != nil || len(left) > 0 {
		t.Errorf("the second node left %q, %v", left, err)
	}
	s.echo.goesOn(t)
	b.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")
}

// try runs a shell's line and returns what it printed; errors are part of it. For goroutines, which must not end a test.
func (b *box) try(line string) string {
	timeout := 60.0
	r, err := b.Client.Commands.Exec(b.t.Context(), &dsecv1.ExecRequest{SandboxId: b.id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Shell: line, TimeoutSeconds: &timeout}})
	if err != nil {
		return fmt.Sprint(err)
	}
	return strings.TrimSpace(string(r.GetStdout()) + string(r.GetStderr()))
}
