package node_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/netproxy"
	"github.com/opendsec/dsec/policy/network/networktest"
	"github.com/opendsec/dsec/policy/network/node"
)

// proxyEnv is set in processes of this test that check names: the socket where they serve.
const proxyEnv = "DSEC_TEST_NETPROXY"

func TestMain(m *testing.M) {
	if socket := os.Getenv(proxyEnv); socket != "" {
		os.Exit(serveProxy(socket))
	}
	os.Exit(m.Run())
}

// serveProxy serves until its standard input ends.
func serveProxy(socket string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	_ = os.Remove(socket)
	ln, err := net.Listen("unix", socket)
	if err == nil {
		err = netproxy.NewServer(netproxy.ServerConfig{}).Serve(ctx, ln)
	}
	if err != nil {
		return 1
	}
	return 0
}

// proxyProcess is a process that checks names, on the host of a world.
type proxyProcess struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.Closer
}

func (w *world) proxyProcess() *proxyProcess {
	w.t.Helper()
	p := &proxyProcess{t: w.t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), proxyEnv+"="+w.cfg.Proxy)
	p.cmd.Stderr = os.Stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.host.Do(p.cmd.Start); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.end)
	return p
}

// end ends it; it has ended, or does, without an error.
func (p *proxyProcess) end() {
	if p.cmd.ProcessState != nil {
		return
	}
	p.stdin.Close()
	err := p.cmd.Wait()
	// Who has a network that it still serves, ends it as well.
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); err != nil && (!ok || status.Signal() != syscall.SIGKILL) {
		p.t.Errorf("what checks names: %v", err)
	}
}

func (p *proxyProcess) kill() {
	p.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	_ = p.cmd.Wait()
}

// apart is a world whose names are checked by another process.
func apart(t *testing.T, by string) (*world, *proxyProcess) {
	t.Helper()
	w := start(t, by)
	if err := w.Destroy(); err != nil {
		t.Fatal(err)
	}
	w.cfg.Proxy = filepath.Join(filepath.Dir(w.cfg.Dir), "p.sock")
	p := w.proxyProcess()
	w.Network = nil
	w.sandbox = networktest.NewNamespace(t) // the old one's link is gone
	w.open()
	w.attach(slot, w.sandbox)
	return w, p
}

// TestApart: the same as TestWhole, where another process checks names.
func TestApart(t *testing.T) {
	for _, by := range []string{datapath.EBPF, datapath.Nftables} {
		t.Run(by, func(t *testing.T) {
			w, _ := apart(t, by)
			whole(t, w)
		})
	}
}

// drip answers without an end.
func drip(rw http.ResponseWriter, r *http.Request) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for r.URL.Path != "/" {
		if _, err := io.WriteString(rw, "x"); err != nil {
			return
		}
		_ = http.NewResponseController(rw).Flush()
		select {
		case <-tick.C:
		case <-r.Context().Done():
			return
		}
	}
	_, _ = io.WriteString(rw, "site=drip")
}

// download begins a download that does not end.
func (w *world) download(url string) net.Conn {
	w.t.Helper()
	host := strings.TrimPrefix(url, "http://")
	list, err := w.lookup(w.t.Context(), "ip4", host)
	if err != nil {
		w.t.Fatal(err)
	}
	c := w.dial(netip.AddrPortFrom(list[0].Unmap(), 80))
	if err := say(c, "GET /drip HTTP/1.1\r\nHost: "+host+"\r\n\r\n", 200); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// more wants more bytes of a download.
func more(t *testing.T, c net.Conn, when string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.ReadFull(c, make([]byte, 300)); err != nil {
		t.Errorf("a checked connection, %s: %v", when, err)
	}
}

// cut wants the end of a download.
func cut(t *testing.T, c net.Conn, when string) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a checked connection, %s: %v, want a reset", when, err)
	}
}

// TestApartTakeOver: the process that has the network goes, and the one that checks names stays, with its connections and
// what it knows. The next one has them: its changes cut them, its events tell of those that ended meanwhile.
func TestApartTakeOver(t *testing.T) {
	for _, by := range []string{datapath.EBPF, datapath.Nftables} {
		t.Run(by, func(t *testing.T) {
			w, _ := apart(t, by)
			w.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(drip)))
			w.inet.Site("two.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(drip)))
			w.set("one.example", "two.example")
			one, two, short := w.download("http://one.example"), w.download("http://two.example"), w.download("http://one.example")
			kept := w.client("ip4")
			list, err := w.lookup(t.Context(), "ip4", "one.example")
			if err != nil {
				t.Fatal(err)
			}
			kept.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return w.sandbox.Dial(ctx, "tcp", netip.AddrPortFrom(list[0].Unmap(), 80).String())
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			more(t, one, "while nobody serves")
			more(t, two, "while nobody serves")
			if got, err := w.get(kept, "http://one.example/"); err != nil || got != "site=drip" {
				t.Errorf("a new connection by a name that was answered, while nobody serves: %q %v", got, err)
			}
			if r, err := kept.Get("http://two.example/"); err != nil || r.StatusCode != http.StatusForbidden {
				t.Errorf("another name at that address, while nobody serves: %v %v", r, err)
			} else {
				r.Body.Close()
			}
			short.Close()
			w.mu.Lock()
			w.events = nil
			w.mu.Unlock()
			w.open()
			w.set("one.example", "two.example")
			// In the time of the old one, kept for this one.
			w.event("of a connection that ended meanwhile", func(e node.Event) bool {
				return e.Kind == "ended" && e.Name == "one.example" && e.Received > 200
			})
			w.event("of a connection that was refused meanwhile", func(e node.Event) bool {
				return e.Kind == "denied" && e.Name == "two.example"
			})
			more(t, one, "after the other took over")
			// What was answered is known: a change that allows it carries it over.
			w.set("one.example", "three.example")
			more(t, one, "after a change that allows it")
			cut(t, two, "after a change that forbids it")
			w.event("of the cut", func(e node.Event) bool { return e.Kind == "cut" && e.Name == "two.example" && e.Received > 500 })
			if err := w.Detach(slot); err != nil {
				t.Fatal(err)
			}
			cut(t, one, "after its sandbox has ended")
		})
	}
}

// TestApartKilled: the process that checks names is killed. Its connections are reset, the sandbox is told; nothing is let
// through until there is another, which knows what was asked for meanwhile.
func TestApartKilled(t *testing.T) {
	w, p := apart(t, datapath.EBPF)
	site := w.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(drip)))
	w.inet.Site("two.example", networktest.Addrs(site.Addrs()...))
	w.set("one.example")
	c := w.download("http://one.example")
	p.kill()
	cut(t, c, "whose process was killed")
	w.event("of the end", func(e node.Event) bool {
		return e.Kind == "failed" && e.Key == key && strings.Contains(e.Why, "connect again")
	})
	if err := w.refused("tcp", netip.AddrPortFrom(site.V4[0], 80)); err == nil {
		t.Error("a connection is let through that nobody checks")
	}
	w.set("two.example")
	w.set("one.example", "none.example")
	p = w.proxyProcess()
	eventually(t, "the next one lets through", func() bool {
		got, err := w.get(w.client("ip4"), "http://one.example/")
		return err == nil && got == "site=drip"
	})
	direct := w.inet.Client(w.sandbox, func(string) string { return netip.AddrPortFrom(site.V4[0], 443).String() })
	if _, err := w.get(direct, "https://two.example/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("what is forbidden since: %v", err)
	}
	// One that is stopped does not keep a change from holding: it is ended.
	c = w.download("http://one.example")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	w.set("two.example")
	f, err := linux.OpenPID(p.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !linux.Ended(f) {
		t.Error("a process goes on that did not take the change")
	}
	_ = p.cmd.Wait()
	cut(t, c, "whose process was stopped")
}

// TestApartGone: the process that checks names lets go of a network that is gone, whoever took it away.
func TestApartGone(t *testing.T) {
	w, p := apart(t, datapath.EBPF)
	w.inet.Site("one.example", networktest.V4(1), networktest.Handler(http.HandlerFunc(drip)))
	w.set("one.example")
	c := w.download("http://one.example")
	sockets := func() int {
		fds, err := os.ReadDir("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	with := sockets()
	if err := w.Destroy(); err != nil {
		t.Fatal(err)
	}
	w.Network = nil
	if now := sockets(); now > with-4 { // two listeners, two ends
		t.Errorf("%d descriptors with a network and a connection, %d without", with, now)
	}
	c.Close()
	w.nothingLeft()
	// Another network, of the same directory.
	w.sandbox = networktest.NewNamespace(t)
	w.gen = 0
	w.open()
	w.attach(slot, w.sandbox)
	w.set("one.example")
	if got, err := w.get(w.client("ip4"), "http://one.example/"); err != nil || got != "site=drip" {
		t.Errorf("%q %v", got, err)
	}
}
