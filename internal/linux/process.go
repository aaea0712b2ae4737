package linux

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// BecomeSubreaper makes orphans among this process's descendants its children, so that a process tree stays one
// when a process in its middle dies.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	return nil
}

// WaitPID returns when the process of a pidfd (OpenPID) has ended, or with ctx's error.
func WaitPID(ctx context.Context, p *os.File) error {
	rc, err := p.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = rc.Read(func(fd uintptr) bool {
		n, perr := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return perr == nil && n > 0
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Ended tells whether the process of a pidfd has ended, though its parent may not have taken note.
func Ended(p *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(p.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// PeerPID is the process that listens at (or dialled) the other end of a Unix socket connection.
func PeerPID(c *net.UnixConn) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var oerr error
	if err := rc.Control(func(fd uintptr) { cred, oerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if oerr != nil {
		return 0, fmt.Errorf("read peer of socket: %w", oerr)
	}
	return int(cred.Pid), nil
}
