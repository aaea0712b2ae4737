package hold

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// lockWait is how long a holder waits for its predecessor's end; variable for tests.
var lockWait = 2 * time.Second

// LockPath is the file that the holder of a socket keeps locked, with its pid in it.
func LockPath(socket string) string { return socket + ".lock" }

// takeLock makes sure that no other process holds for the socket.
func takeLock(ctx context.Context, socket string) (*os.File, error) {
	end := time.Now().Add(lockWait)
	for {
		f, err := tryLock(LockPath(socket))
		if err != nil {
			return nil, err
		}
		if f != nil {
			// Whoever answers without the lock is a holder of an earlier version: it is not overtaken either.
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
			if err != nil {
				return f, nil
			}
			c.Close()
			f.Close()
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("hold: %w: process %s holds for %s already: end it first (`dsec down`)", sandbox.ErrConflict, lockedBy(socket), socket)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tryLock locks the file at path and writes this process's pid into it; nil = it is locked by another.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("hold: open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, fmt.Errorf("hold: lock %s: %w", path, err)
	}
	// It may have been removed between opening and locking: then it keeps nobody out.
	mine, err := f.Stat()
	if err == nil {
		var there os.FileInfo
		if there, err = os.Stat(path); errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
			f.Close()
			return nil, nil
		}
	}
	// The number is for people and for `dsec down`; on a full disk the lock must do without it.
	if err == nil {
		_ = f.Truncate(0)
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		return f, nil
	}
	f.Close()
	return nil, fmt.Errorf("hold: lock %s: %w", path, err)
}

// lockedBy is the pid in the lock file, as text.
func lockedBy(socket string) string {
	b, err := os.ReadFile(LockPath(socket))
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return pid
	}
	return "of unknown number"
}
