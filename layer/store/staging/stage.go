package staging

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const lockSuffix = ".lock"

// Area is a directory of stages. It may be shared by processes.
type Area struct {
	dir string
	log *slog.Logger
}

// Open makes the directory if it is missing, and removes what dead processes left in it.
func Open(dir string, log *slog.Logger) (*Area, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Area{dir: dir, log: log}
	return s, s.sweep()
}

// Stage is a private directory. Its lock file, held until it is closed, tells a living maker from a dead one.
type Stage struct {
	dir  string
	lock *os.File
}

// New makes a stage.
func (s *Area) New(ctx context.Context) (*Stage, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		dir := filepath.Join(s.dir, rand.Text())
		lock, err := os.OpenFile(dir+lockSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, fmt.Errorf("make staging: %w", err)
		}
		held, err := takeLock(lock)
		if err == nil && held {
			err = os.Mkdir(dir, 0o700)
		}
		if err != nil {
			os.Remove(lock.Name())
			lock.Close()
			return nil, fmt.Errorf("make staging: %w", err)
		}
		if held {
			return &Stage{dir: dir, lock: lock}, nil
		}
		lock.Close() // a sweep took the new file for a dead one's
	}
}

// takeLock locks f if nobody holds it. False: somebody does, or the file has been removed meanwhile.
func takeLock(f *os.File) (bool, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	here, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(here, there), err
}

// Dir is where the stage lies.
func (st *Stage) Dir() string { return st.dir }

// Close removes the directory with what is left in it.
func (st *Stage) Close() error {
	if st.lock == nil {
		return nil
	}
	err := os.RemoveAll(st.dir)
	if err == nil { // else a later sweep finds it
		err = os.Remove(st.lock.Name())
	}
	if cerr := st.lock.Close(); err == nil {
		err = cerr
	}
	st.lock = nil
	return err
}

// sweep removes the staging of processes that are gone.
func (s *Area) sweep() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, isLock := strings.CutSuffix(e.Name(), lockSuffix)
		if !isLock {
			continue
		}
		path := filepath.Join(s.dir, e.Name())
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		dead, err := takeLock(f)
		if dead {
			dir := filepath.Join(s.dir, name)
			s.log.Info("remove what a dead process left in staging", "dir", dir)
			if err = os.RemoveAll(dir); err == nil {
				err = os.Remove(path)
			}
		}
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}
