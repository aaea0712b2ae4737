package initd_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/initd"
	"github.com/opendsec/dsec/guest/wire"
)

// TestSystem: as the agent of a whole system dsec-init works in the system as it is, and for its parent alone.
func TestSystem(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	bin := guesttest.Binary(t)
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(bin)
	cmd.Args = []string{"dsec-init", "system"}
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = initd.Environ(), os.Stderr, []*os.File{f}
	// A name of its own for the host, which the claim changes.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWUTS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		l.Close()
	})
	ctx, cancel := guesttest.Context(t)
	defer cancel()

	// Another process than its parent gets nothing but the end of its connection.
	other := exec.CommandContext(ctx, "python3", "-c", "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(len(s.recv(1)))", path)
	if out, err := other.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Errorf("another process was served: %s, %v", out, err)
	}

	nc, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := aether.Open(ctx, nc, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := guesttest.NewRecorder(c)
	c.Serve(r)
	if err := c.Claim(ctx, &wire.Claim{Hostname: "whole", Env: []string{"GREETING=hello"}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Claim(ctx, &wire.Claim{}, nil); err == nil {
		t.Error("claimed twice")
	}
	b := &systemBox{t: t, c: c, r: r, ctx: ctx}
	if got := b.sh("echo $GREETING from $(hostname); readlink /proc/self/ns/pid"); got != "hello from whole\n"+b.link("/proc/self/ns/pid")+"\n" {
		t.Errorf("it says %q", got)
	}
}

type systemBox struct {
	t   *testing.T
	c   *aether.Conn
	r   *guesttest.Recorder
	ctx context.Context
}

func (b *systemBox) link(path string) string {
	s, err := os.Readlink(path)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *systemBox) sh(script string) string {
	b.t.Helper()
	n := id()
	if _, err := b.c.Start(b.ctx, &wire.Start{ID: n, Shell: script}, nil); err != nil {
		b.t.Fatal(err)
	}
	res, err := b.r.Wait(b.ctx, n)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(res.All)
}
