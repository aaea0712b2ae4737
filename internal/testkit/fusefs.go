package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// MountLoopback mounts a FUSE file system at dir, served by a process of its own, that shows the folder from: a file
// system that is not the kernel's own, as a shared one is. The returned function ends it.
func MountLoopback(ctx context.Context, from, dir string) (func() error, error) {
	m, err := MountHanging(ctx, from, dir)
	if err != nil {
		return nil, err
	}
	return m.Stop, nil
}

// Hanging is such a mount whose file system may be made to stand still.
type Hanging struct {
	Stop func() error
	proc *os.Process
}

// MountHanging is MountLoopback for those who want to stop and start it.
func MountHanging(ctx context.Context, from, dir string) (*Hanging, error) {
	prog, err := goTool(ctx, loopback)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(prog, "-q", "-directmountstrict", dir, from) // no fusermount
	stop, err := mountFUSE(ctx, cmd, dir)
	if err != nil {
		return nil, err
	}
	return &Hanging{stop, cmd.Process}, nil
}

// Pause makes all calls hang, Resume lets them go on.
func (h *Hanging) Pause() error  { return h.proc.Signal(syscall.SIGSTOP) }
func (h *Hanging) Resume() error { return h.proc.Signal(syscall.SIGCONT) }

// ErrNotInstalled says which program of the distribution is not there.
var ErrNotInstalled = errors.New("not installed")

// MountBindFS does the same with Debian's bindfs: another implementation of FUSE, which is no part of ours. Error: ErrNotInstalled.
func MountBindFS(ctx context.Context, from, dir string) (func() error, error) {
	prog, err := exec.LookPath("bindfs")
	if err != nil {
		return nil, fmt.Errorf("bindfs: %w: apt-get install bindfs", ErrNotInstalled)
	}
	return mountFUSE(ctx, exec.Command(prog, "-f", from, dir), dir)
}

// mountFUSE starts what serves a file system at dir, and waits for that.
func mountFUSE(ctx context.Context, cmd *exec.Cmd, dir string) (func() error, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error {
		err := syscall.Unmount(dir, syscall.MNT_DETACH)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return err
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var st syscall.Statfs_t
		err := syscall.Statfs(dir, &st)
		if err == nil && st.Type == fuseMagic {
			return stop, nil
		}
		if time.Now().After(end) || ctx.Err() != nil {
			_ = stop()
			return nil, fmt.Errorf("%s is not mounted at %s: %s", cmd.Path, dir, said.String())
		}
	}
}

// fuseMagic is what statfs calls FUSE.
const fuseMagic = 0x65735546

// HaveFUSE tells whether FUSE file systems can be mounted here.
func HaveFUSE() bool {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		f.Close()
	}
	return err == nil && os.Geteuid() == 0
}
