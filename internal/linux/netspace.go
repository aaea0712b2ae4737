package linux

import (
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// NetSpace is a network namespace with a thread of this process in it. Sockets that are made on the thread
// belong to the namespace for good.
type NetSpace struct {
	file *os.File
	work chan func()
	done chan struct{}
	once sync.Once
}

// NewNetSpace makes a network namespace. It ends when nothing refers to it any more: the NetSpace, sockets,
// processes, and files that it was bound to (PinNetSpace).
func NewNetSpace() (*NetSpace, error) { return startNetSpace(nil) }

// EnterNetSpace opens an existing one: a descriptor of /proc/PID/ns/net, or of the file it was pinned to. The
// NetSpace takes the descriptor over.
func EnterNetSpace(ns *os.File) (*NetSpace, error) { return startNetSpace(ns) }

func startNetSpace(ns *os.File) (*NetSpace, error) {
	s := &NetSpace{file: ns, work: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go s.run(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return s, nil
}

func (s *NetSpace) run(ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread is what /proc/self shows of the process: it stays where it is. While it is locked here,
		// the next goroutine gets another.
		again := make(chan error)
		go s.run(again)
		err := <-again
		runtime.UnlockOSThread()
		ready <- err
		return
	}
	// Never unlocked: the runtime ends the thread with the goroutine, and starts no thread from it.
	defer close(s.done)
	var err error
	if s.file != nil {
		if err = unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter network namespace %s: %w", s.file.Name(), err)
		}
	} else if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
		err = fmt.Errorf("make network namespace: %w", err)
	} else {
		s.file, err = os.Open("/proc/thread-self/ns/net")
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range s.work {
		f()
	}
}

// File is the namespace's descriptor; it belongs to the NetSpace.
func (s *NetSpace) File() *os.File { return s.file }

// Do runs f on the thread that is in the namespace; one at a time.
func (s *NetSpace) Do(f func() error) error {
	result := make(chan error, 1)
	select {
	case s.work <- func() { result <- f() }:
		return <-result
	case <-s.done:
		return os.ErrClosed
	}
}

// Within runs f on the thread while it is in another namespace, of which the caller keeps the descriptor.
func (s *NetSpace) Within(other *os.File, f func() error) error {
	return s.Do(func() error {
		if err := unix.Setns(int(other.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", other.Name(), err)
		}
		err := f()
		if back := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); back != nil {
			// The thread would go on in the wrong namespace: nothing on it can be right any more.
			panic("a thread cannot return to its network namespace: " + back.Error())
		}
		return err
	})
}

// Close ends the thread. The namespace ends when nothing else refers to it. No Do may be going on.
func (s *NetSpace) Close() error {
	var err error
	s.once.Do(func() {
		done := make(chan struct{})
		select {
		case s.work <- func() { close(done); runtime.Goexit() }:
			<-done
			<-s.done
		case <-s.done:
		}
		err = s.file.Close()
	})
	return err
}

// PinNetSpace binds the namespace to a file, which is made: it lives on until the file is unpinned.
func PinNetSpace(s *NetSpace, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	err = s.Do(func() error { return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "") })
	if err != nil {
		_ = os.Remove(path)
		return fmt.Errorf("pin network namespace to %s: %w", path, err)
	}
	return nil
}

// OpenPinnedNetSpace opens the namespace that is bound to a file. A file without one, as a crash between making
// and binding leaves it, is os.ErrNotExist.
func OpenPinnedNetSpace(path string) (*NetSpace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil || st.Type != unix.NSFS_MAGIC {
		f.Close()
		return nil, &os.PathError{Op: "open network namespace", Path: path, Err: os.ErrNotExist}
	}
	s, err := EnterNetSpace(f)
	if err != nil {
		f.Close()
	}
	return s, err
}

// UnpinNetSpace undoes PinNetSpace; nothing pinned is no error.
func UnpinNetSpace(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return fmt.Errorf("unpin network namespace %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// NetSpaceCookie is the kernel's number of a network namespace, by which eBPF programs know it.
func NetSpaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(fd)
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("read network namespace's cookie: %w", err)
	}
	return c, nil
}
