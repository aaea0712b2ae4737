package guesttest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/initd"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/testkit/patience"
)

// Shell is a running dsec-init.
type Shell struct {
	PID    int
	Socket string // of its control channel, on the host
	Log    bytes.Buffer

	t     testing.TB
	cmd   *exec.Cmd
	epoch uint64
	ended chan struct{}
}

// Options of Spawn.
type Options struct {
	Filter   []byte     // raw seccomp program
	Args     []string   // more arguments
	CgroupV1 []*os.File // tasks files that commands join
}

// Spawn starts a warm shell. It is killed when the test ends.
func Spawn(t testing.TB, o Options) *Shell {
	t.Helper()
	bin := Binary(t)
	dir := tempDir(t)
	stage := filepath.Join(dir, "stage")
	must(t, os.Mkdir(stage, 0o755))
	s := &Shell{t: t, Socket: filepath.Join(dir, "sock"), ended: make(chan struct{})}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.Socket, Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	lf, err := l.File()
	must(t, err)
	l.Close()
	defer lf.Close()

	args := initd.Args{Stage: stage}
	files := []*os.File{lf}
	for _, f := range o.CgroupV1 {
		args.Tasks = append(args.Tasks, 3+len(files))
		files = append(files, f)
	}
	args.Seccomp = -1
	if o.Filter != nil {
		fd, err := unix.MemfdCreate("filter", unix.MFD_CLOEXEC)
		must(t, err)
		f := os.NewFile(uintptr(fd), "filter")
		defer f.Close()
		_, err = f.Write(o.Filter)
		must(t, err)
		_, err = f.Seek(0, 0)
		must(t, err)
		args.Seccomp = 3 + len(files)
		files = append(files, f)
	}
	s.cmd = exec.Command(bin, append(args.List(), o.Args...)...)
	s.cmd.Env = initd.Environ()
	s.cmd.Dir = "/"
	s.cmd.Stderr = &s.Log
	s.cmd.ExtraFiles = files
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET |
			unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWCGROUP,
		UidMappings: mappings(), GidMappings: mappings(), GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{Groups: []uint32{}},
	}
	must(t, s.cmd.Start())
	s.PID = s.cmd.Process.Pid
	go func() {
		s.cmd.Wait()
		close(s.ended)
	}()
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		<-s.ended
		if s.Log.Len() > 0 {
			t.Logf("dsec-init's log: %s", s.Log.String())
		}
	})
	return s
}

// Ended is closed when dsec-init has ended.
func (s *Shell) Ended() <-chan struct{} { return s.ended }

// Open opens a connection with a greater epoch than the one before.
func (s *Shell) Open() *aether.Conn {
	s.t.Helper()
	ctx, cancel := Context(s.t)
	defer cancel()
	s.epoch++
	nc, err := net.Dial("unix", s.Socket)
	must(s.t, err)
	c, err := aether.Open(ctx, nc, s.epoch)
	if err != nil {
		s.t.Fatalf("open: %v (log: %s)", err, s.Log.String())
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// Sandbox spawns a shell, claims it with a root of the host's files, and serves a Recorder.
func Sandbox(t testing.TB, o Options, claim *wire.Claim) (*Shell, *aether.Conn, *Recorder) {
	t.Helper()
	s := Spawn(t, o)
	root, _ := Root(t)
	c := s.Open()
	ctx, cancel := Context(t)
	defer cancel()
	if claim == nil {
		claim = &wire.Claim{Hostname: "sandbox"}
	}
	if err := c.Claim(ctx, claim, root); err != nil {
		t.Fatal(err)
	}
	r := NewRecorder(c)
	c.Serve(r)
	return s, c, r
}

// Slow tells whether the machine is too slow for what has to happen within a fixed time.
func Slow() bool { return patience.Factor() > 1 }

// Context bounds one operation of a test.
func Context(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), time.Duration(patience.Factor())*60*time.Second)
}
