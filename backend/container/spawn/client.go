package spawn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// Client talks to one spawner and starts it again when it died.
type Client struct {
	binary  string // dsec-init, root-owned, mode 0711
	prepare func(*exec.Cmd)

	mu   sync.Mutex // one request at a time: clones serialise in the kernel anyway
	conn *net.UnixConn
	cmd  *exec.Cmd
}

// NewClient returns a client that runs the given dsec-init binary. prepare may adjust the command before it
// starts (control groups); it may be nil.
func NewClient(binary string, prepare func(*exec.Cmd)) *Client {
	return &Client{binary: binary, prepare: prepare}
}

// Spawn makes a shell. It returns its process id and a pidfd.
func (c *Client) Spawn(ctx context.Context, r *Request) (int, *os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn == nil {
		if err := c.start(); err != nil {
			return 0, nil, err
		}
	}
	pid, fd, err := c.ask(ctx, r)
	var refused *refusedError
	if err != nil && !errors.As(err, &refused) {
		c.stop() // the stream's state is unknown
	}
	return pid, fd, err
}

type refusedError struct{ msg string }

func (e *refusedError) Error() string { return "spawner: " + e.msg }

func (c *Client) ask(ctx context.Context, r *Request) (int, *os.File, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(30 * time.Second)
	}
	_ = c.conn.SetDeadline(deadline)
	msg := r.ID + " " + strconv.FormatUint(uint64(r.UIDBase), 10)
	if len(r.Args) > 0 {
		msg += " " + strings.Join(r.Args, " ")
	}
	files := append([]*os.File{r.Cgroup, r.Log, r.Listen}, r.Files...)
	if err := linux.SendFiles(c.conn, []byte(msg), files...); err != nil {
		return 0, nil, fmt.Errorf("ask spawner: %w", err)
	}
	buf := make([]byte, 1024)
	n, got, err := linux.ReceiveFiles(c.conn, buf)
	if err != nil {
		return 0, nil, fmt.Errorf("answer of spawner: %w", err)
	}
	s := string(buf[:n])
	if pid, err := strconv.Atoi(strings.TrimPrefix(s, "ok ")); strings.HasPrefix(s, "ok ") && err == nil && len(got) == 1 {
		return pid, got[0], nil
	}
	for _, f := range got {
		f.Close()
	}
	return 0, nil, &refusedError{strings.TrimPrefix(s, "err ")}
}

func (c *Client) start() error {
	ours, theirs, err := linux.SocketPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	ours.Close()
	if err != nil {
		return err
	}
	cmd := exec.Command(c.binary, "spawner")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = []string{"GOMAXPROCS=2"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.prepare != nil {
		c.prepare(cmd)
	}
	if err := cmd.Start(); err != nil {
		conn.Close()
		return fmt.Errorf("start spawner: %w", err)
	}
	c.conn, c.cmd = conn.(*net.UnixConn), cmd
	return nil
}

func (c *Client) stop() {
	if c.conn == nil {
		return
	}
	c.conn.Close()
	c.conn = nil
	_ = c.cmd.Process.Kill() // it only makes processes; those it made go on
	_ = c.cmd.Wait()
}

// Close ends the spawner; shells go on.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
}
