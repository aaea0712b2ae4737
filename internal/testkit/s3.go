package testkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// S3 is an S3 service on loopback, a process of its own over a folder; it can be stopped and started.
type S3 struct {
	Endpoint       string // http://127.0.0.1:PORT
	Access, Secret string
	Dir            string // its buckets, a folder each; objects are files in them

	cmd  *exec.Cmd
	prog string
	addr string
}

// StartS3 starts a service with its buckets in dir, on a file system with extended attributes, and makes bucket. It must be
// stopped.
func StartS3(ctx context.Context, dir, bucket string) (*S3, error) {
	prog, err := goTool(ctx, versityGW)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	l.Close()
	s := &S3{Endpoint: "http://" + addr, Access: "test-access", Secret: "test-secret-key", Dir: dir, prog: prog, addr: addr}
	if err := os.MkdirAll(filepath.Join(dir, bucket), 0o755); err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// Start starts it again, at the same address.
func (s *S3) Start(ctx context.Context) error {
	s.cmd = exec.Command(s.prog, "--port", s.addr, "posix", s.Dir)
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.Access, "ROOT_SECRET_KEY="+s.Secret)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := os.OpenFile(filepath.Join(s.Dir, "..", filepath.Base(s.Dir)+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	s.cmd.Stdout, s.cmd.Stderr = out, out
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		r, err := http.Get(s.Endpoint)
		if err == nil {
			r.Body.Close()
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("S3 service does not answer: %w", err), s.Stop())
		}
	}
}

// Stop kills it; what it keeps stays.
func (s *S3) Stop() error {
	if s.cmd == nil {
		return nil
	}
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // killed
	s.cmd = nil
	return err
}

// PID is its process.
func (s *S3) PID() int { return s.cmd.Process.Pid }

// Pause stops it from answering, without closing its connections; Resume lets it go on.
func (s *S3) Pause() error  { return s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *S3) Resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }
