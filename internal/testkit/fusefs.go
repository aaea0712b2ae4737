package testkit

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// MountLoopback mounts a FUSE file system at dir, served by a process of its own, that shows the folder from: a file
// system that is not the kernel's own, as a shared one is. The returned function ends it.
func MountLoopback(ctx context.Context, from, dir string) (func() error, error) {
	prog, err := goTool(ctx, loopback)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(prog, "-q", "-directmountstrict", dir, from) // no fusermount
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
			return nil, fmt.Errorf("%s is not mounted at %s: %s", prog, dir, said.String())
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
