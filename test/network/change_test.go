package network

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// talk starts a conversation inside that goes on until something ends it, which ended then tells.
func (b *box) talk(e *echo) {
	b.t.Helper()
	b.sh("rm -f /tmp/talk; { reach talk " + addr(e.at, "7000") + " >/tmp/talk.new 2>&1; mv /tmp/talk.new /tmp/talk; } >/dev/null 2>&1 &")
	e.goesOn(b.t)
}

// ended waits for the end of what was started, and tells why.
func (b *box) ended(file string) string {
	b.t.Helper()
	return b.sh("until test -e " + file + "; do sleep 0.02; done; cat " + file)
}

// drips waits until more of the page without an end arrives inside.
func (b *box) drips() {
	b.t.Helper()
	b.sh("n=$(cat /tmp/count 2>/dev/null || echo 0); until m=$(cat /tmp/count 2>/dev/null) && test ${m:-0} -gt $((n + 3)); do test ! -e /tmp/drip || exit 9; sleep 0.02; done")
}

// testLive: rules change while connections are open.
func testLive(t *testing.T, w *world, s *sites) {
	flow := s.echo.at.String() + ":7000/tcp"
	b := w.box(t, flow, "live.example")
	defer b.stop()
	b.talk(s.echo)
	b.sh("{ reach stream http://live.example/drip >/tmp/drip.new 2>&1; mv /tmp/drip.new /tmp/drip; } >/dev/null 2>&1 &")
	b.drips()

	// What both allow goes on, by the kernel and by the proxy.
	if g := b.set(flow, "live.example", "pypi"); g != 2 {
		t.Errorf("generation %d, want 2", g)
	}
	s.echo.goesOn(t)
	b.drips()
	b.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")
	if got := b.sh("ls /tmp/talk /tmp/drip 2>/dev/null || true"); got != "" {
		t.Fatalf("a change that allows them has cut: %s", got)
	}
	// What the new ones forbid is cut.
	b.set("live.example")
	if got := b.ended("/tmp/talk"); got != "reset" && got != "denied" {
		t.Errorf("the connection that is forbidden ended with %q", got)
	}
	b.reach("tcp "+addr(s.echo.at, "7000"), "denied")
	b.reach("https://pypi.org/", "name")
	b.drips()
	b.reach("http://live.example/", "200 live")
	b.set("none")
	if got := b.ended("/tmp/drip"); got != "reset" {
		t.Errorf("the program that read from the checked connection was told %q", got)
	}
	b.reach("http://live.example/", "name")
	b.reach("tcp "+addr(s.live.V4[0], "80"), "denied")
	// And opened again.
	b.set(flow)
	b.talk(s.echo)
}

// testNamed: connections to the answers of a name, on a port that is not checked.
func testNamed(t *testing.T, w *world, s *sites) {
	w.inet.DNS.Host("echo.example", 60, s.echo.at)
	b := w.box(t, "echo.example:7000/tcp")
	defer b.stop()
	b.reach("tcp "+addr(s.echo.at, "7000"), "denied") // not answered yet
	b.sh("getent ahostsv4 echo.example")
	b.reach("tcp "+addr(s.shared.V4[0], "7000"), "denied") // another's
	b.talk(s.echo)
	b.set("echo.example:7000/tcp", "pypi")
	s.echo.goesOn(t)
	b.reach("tcp "+addr(s.echo.at, "7000"), "open") // the answer holds under the new rules
	b.set("echo.example:7001/udp")
	if got := b.ended("/tmp/talk"); got != "reset" && got != "denied" {
		t.Errorf("the connection that is forbidden ended with %q", got)
	}
	b.reach("udp "+addr(s.echo.at, "7001"), "true")
	b.reach("tcp "+addr(s.echo.at, "7000"), "denied")
}

// testPaused: rules change while a sandbox is paused, and hold when it goes on.
func testPaused(t *testing.T, w *world, s *sites) {
	flow := s.echo.at.String() + ":7000/tcp"
	b := w.box(t, flow, "pypi")
	defer b.stop()
	b.talk(s.echo)
	if _, err := w.Client.Sandboxes.PauseSandbox(t.Context(), &dsecv1.PauseSandboxRequest{SandboxId: b.id}); err != nil {
		t.Fatal(err)
	}
	if g := b.set("six.example"); g != 2 {
		t.Errorf("generation %d, want 2", g)
	}
	if i := b.info(); i.GetState() != dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		t.Errorf("it is %v", i.GetState())
	}
	if _, err := w.Client.Sandboxes.ResumeSandbox(t.Context(), &dsecv1.ResumeSandboxRequest{SandboxId: b.id}); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("/tmp/talk"); got != "reset" && got != "denied" {
		t.Errorf("the connection that was forbidden meanwhile ended with %q", got)
	}
	b.reach("https://pypi.org/", "name")
	b.reach("https://six.example/", "200 site=six.example host=six.example")
}

// testKilled: the edge is killed; allowed connections do not notice, and its successor knows the rules.
func testKilled(t *testing.T, w *world, s *sites) {
	flow := s.echo.at.String() + ":7000/tcp"
	b, paused, named := w.box(t, flow), w.box(t, "open"), w.box(t, "killed.example:7000/tcp")
	defer b.stop()
	defer paused.stop()
	defer named.stop()
	w.inet.DNS.Host("killed.example", 60, s.echo.at)
	named.sh("getent ahostsv4 killed.example")
	named.talk(s.echo)
	b.set(flow, "pypi")
	b.talk(s.echo)
	if _, err := w.Client.Sandboxes.PauseSandbox(t.Context(), &dsecv1.PauseSandboxRequest{SandboxId: paused.id}); err != nil {
		t.Fatal(err)
	}
	w.killEdge(t)
	s.echo.goesOn(t)
	b.explain("pypi.org", 443, true) // waits for the edge
	b.explain("six.example", 443, false)
	if n := b.info().GetNetwork(); n.GetGenerationApplied() != 2 || n.GetGenerationAsked() != 2 || len(n.GetRules()) != 2 {
		t.Errorf("rules after the restart: %v", n)
	}
	s.echo.goesOn(t)
	b.reach("https://pypi.org/", "200 site=pypi.org host=pypi.org")
	b.reach("https://six.example/", "name")
	b.reach("tcp "+addr(s.shared.V4[0], "7000"), "denied")
	s.echo.goesOn(t)
	b.set(flow, "six.example")
	b.reach("https://six.example/", "200 site=six.example host=six.example")
	b.reach("https://pypi.org/", "name")
	s.echo.goesOn(t)
	b.set("six.example")
	if got := b.ended("/tmp/talk"); got != "reset" && got != "denied" {
		t.Errorf("the connection that is forbidden ended with %q", got)
	}
	s.echo.goesOn(t) // by name: the other has ended
	if n := paused.info().GetNetwork(); n.GetGenerationApplied() != 1 {
		t.Errorf("the paused one: %v", n)
	}
	paused.reach("https://shared.example/", "200 site=shared.example host=shared.example")
}

// stream begins a download through the check of names that does not end.
func (b *box) stream(url string) {
	b.t.Helper()
	b.sh("rm -f /tmp/drip /tmp/count; { reach stream " + url + " >/tmp/drip.new 2>&1; mv /tmp/drip.new /tmp/drip; } >/dev/null 2>&1 &")
	b.drips()
}

// testChecked: a download that is checked outlives the edge, twice, and the next one has its connection: it tells of it, and
// its changes cut it. When the process that checks is killed, the download is reset, the sandbox told, and the next one works.
func testChecked(t *testing.T, w *world, _ *sites) {
	b := w.box(t, "live.example")
	defer b.stop()
	b.stream("http://live.example/drip")
	checks := w.role("netproxy")
	for range 2 {
		w.killEdge(t)
		b.drips()
	}
	if now := w.role("netproxy"); now != checks || now == 0 {
		t.Errorf("process %d checks, before the edge was killed it was %d", now, checks)
	}
	b.set("live.example", "pypi")
	b.drips() // it had been answered by a process that is gone
	if got := b.sh("ls /tmp/drip 2>/dev/null || true"); got != "" {
		t.Fatal("the download has ended")
	}
	b.set("pypi")
	if got := b.ended("/tmp/drip"); got != "reset" {
		t.Errorf("the download that is forbidden was told %q", got)
	}
	b.event("of the cut", func(e *dsecv1.Event) bool {
		n, _ := strconv.Atoi(e.GetAttributes()["received"])
		return e.GetType() == "network_cut" && e.GetAttributes()["name"] == "live.example" && n > 10
	})

	b.set("live.example")
	b.stream("http://live.example/drip")
	if err := syscall.Kill(checks, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if got := b.ended("/tmp/drip"); got != "reset" {
		t.Errorf("the download whose process was killed was told %q", got)
	}
	b.event("of the end", func(e *dsecv1.Event) bool {
		return e.GetType() == "network_failed" && strings.Contains(e.GetMessage(), "connect again")
	})
	eventually(t, "the next download", func() bool { return b.sh("reach http://live.example/") == "200 live" })
	b.reach("https://pypi.org/", "name")
}

// testGivenUp: a caller that goes away in the middle leaves one of the two policies, whole, and a generation tells which.
func testGivenUp(t *testing.T, w *world, _ *sites) {
	b := w.box(t, "pypi")
	defer b.stop()
	for i := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.Client.Sandboxes.SetNetwork(ctx, &dsecv1.SetNetworkRequest{SandboxId: b.id, Rules: rules([]string{"six.example:" + strconv.Itoa(1000+i)})})
		}()
		if i%2 == 0 {
			cancel()
		} else {
			b.info() // some way along
			cancel()
		}
		<-done
	}
	// A request that was given up may still be on its way: what is looked at is one generation, from before to after.
	eventually(t, "changes are over", func() bool {
		n := b.info().GetNetwork()
		if n.GetGenerationApplied() != n.GetGenerationAsked() {
			return false
		}
		last := n.GetRules()[0].GetTarget()
		right := b.explains("pypi.org", 443) == (last == "pypi")
		if port, err := strconv.Atoi(last[len(last)-4:]); err == nil {
			right = right && b.explains("six.example", int32(port))
		}
		now := b.info().GetNetwork()
		if now.GetGenerationApplied() != now.GetGenerationAsked() || now.GetGenerationAsked() != n.GetGenerationAsked() {
			return false
		}
		if !right {
			t.Errorf("in force is not what generation %d says: %v", n.GetGenerationApplied(), n)
		}
		return true
	})
	// Who knows an old generation is told so.
	g := b.set("pypi")
	_, err := b.Client.Sandboxes.SetNetwork(t.Context(), &dsecv1.SetNetworkRequest{SandboxId: b.id, Rules: rules([]string{"open"}), IfGeneration: g - 1})
	if connect.CodeOf(err) != connect.CodeAborted {
		t.Errorf("a change on top of an old generation: %v", err)
	}
	b.explain("shared.example", 443, false)
}
