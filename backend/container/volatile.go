package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
)

// shellsLink is the name of the shells' directory in the state directory.
const shellsLink = "run/shells"

// openShells finds or makes the directory that holds the shells' records and sockets. They concern processes, so
// they lie in memory where the machine has a place for that, reached by a link in the state directory: a disk's
// file system pays dearly for files that live for seconds.
func (d *Driver) openShells() error {
	link := filepath.Join(d.cfg.StateDir, shellsLink)
	if to, err := os.Readlink(link); err == nil {
		if err := ownDir(to); err == nil {
			d.shellsDir = to
			return nil
		}
		if err := os.Remove(link); err != nil { // the machine was started again
			return err
		}
	}
	if _, err := os.Lstat(link); err == nil { // an ordinary directory: no place in memory was found before
		d.shellsDir = link
		return nil
	}
	for _, place := range []string{"/run", "/dev/shm"} {
		if memory, err := linux.InMemory(place); err != nil || !memory {
			continue
		}
		dir := filepath.Join(place, d.ownName())
		if err := ownDir(dir); err != nil {
			d.log.Warn("cannot keep shells there", "dir", dir, "err", err)
			continue
		}
		if err := os.Symlink(dir, link); err != nil {
			return err
		}
		d.shellsDir = dir
		return nil
	}
	d.shellsDir = link
	return os.Mkdir(link, 0o700)
}

// ownDir makes a directory that nobody else can have prepared.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || !st.IsDir() || sys.Uid != uint32(os.Geteuid()) || st.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s is not a directory of ours with mode 0700", dir)
	}
	return nil
}

// closeShells removes the directory if no shell is left.
func (d *Driver) closeShells() {
	if os.Remove(d.shellsDir) == nil {
		_ = os.Remove(filepath.Join(d.cfg.StateDir, shellsLink))
	}
}
