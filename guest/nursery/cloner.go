package nursery

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Cloner makes processes that begin in namespaces of their own. Go's own fork cannot share memory with a child in a new
// user namespace and so copies the page tables, of which each page written afterwards is a fault; here the child
// shares memory until it executes, and another thread writes its id maps meanwhile. For one goroutine.
type Cloner struct {
	n      *Nursery
	exe    int // what children execute
	born   int // eventfds: a child waits for its maps
	mapped int
	caps   [2]unix.CapUserData
	lowest int // descriptors below it are only placeholders
}

// lowDescriptors is how many descriptors a child can be given.
const lowDescriptors = 32

// NewCloner starts the thread, with the mounts of the calling one. exe is an open executable.
func NewCloner(exe int) (*Cloner, error) {
	// What is passed in later gets numbers above those that children use: no order of copying can hurt.
	for {
		fd, err := unix.FcntlInt(uintptr(exe), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		if fd >= lowDescriptors {
			exe = fd
			break
		}
	}
	c := &Cloner{exe: exe, lowest: lowDescriptors}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&hdr, &c.caps[0]); err != nil {
		return nil, err
	}
	for _, fd := range []*int{&c.born, &c.mapped} {
		var err error
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
			return nil, err
		}
	}
	var err error
	c.n, err = New()
	return c, err
}

// Process says what to make.
type Process struct {
	Namespaces uint64 // CLONE_NEW*
	Owner      uint32 // first host id of the user namespace, its owner, and its root
	IDs        uint32 // how many ids it maps
	Cgroup     int    // descriptor of the v2 group to begin in
	Files      []int  // become descriptors 0, 1, 2, ...
	Argv, Env  []string
}

// Make makes a process and returns when it executes. The descriptor names it for good.
func (c *Cloner) Make(p *Process) (pid, pidfd int, err error) {
	if len(p.Files) > c.lowest {
		return 0, -1, unix.E2BIG
	}
	s, err := c.n.NewScript(24+len(p.Files), 1024+StringsSize(p.Argv)+StringsSize(p.Env))
	if err != nil {
		return 0, -1, err
	}
	defer s.Free()
	names := c.write(s, p)
	c.n.Run(s)
	fds := []unix.PollFd{{Fd: int32(c.born), Events: unix.POLLIN}, {Fd: int32(c.n.FD()), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return 0, -1, err
		}
		if fds[0].Revents != 0 {
			var b [8]byte
			_, _ = unix.Read(c.born, b[:])
			if merr := writeMaps(c.n.ForkedPID(), p.Owner, p.IDs); merr != nil {
				err = merr // the child finds that it cannot become root, and ends
			}
			one := [8]byte{1}
			_, _ = unix.Write(c.mapped, one[:])
			fds[0].Events, fds[0].Revents = 0, 0
			continue
		}
		if _, ok := c.n.Result(); ok {
			break
		}
	}
	pidfd = s.PIDFD()
	step, failed := s.Failed()
	if step < 0 && err == nil {
		return s.PID(), pidfd, nil
	}
	if pidfd >= 0 {
		unix.Close(pidfd)
	}
	if err == nil {
		err = fmt.Errorf("%s: %w", names[step], failed)
	}
	return 0, -1, err
}

// write writes the script and returns what its steps do.
func (c *Cloner) write(s *Script, p *Process) map[int]string {
	names := map[int]string{}
	do := func(name string, nr int, args ...uintptr) { names[s.Do(0, nr, args...)] = name }
	// An owner of its own: what the kernel limits per user is counted for a namespace's owner as well. Who leaves id 0
	// loses the effective capabilities, not the permitted ones.
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	keep := ^uintptr(0)
	do("become the owner", unix.SYS_SETRESUID, keep, uintptr(p.Owner), keep)
	do("keep capabilities", unix.SYS_CAPSET, s.Bytes(bytesOf(&hdr)), s.Bytes(bytesOf(&c.caps)))
	names[s.Clone(p.Namespaces, p.Cgroup)] = "clone"
	do("say so", unix.SYS_WRITE, uintptr(c.born), s.Bytes([]byte{1, 0, 0, 0, 0, 0, 0, 0}), 8)
	do("wait for the id maps", unix.SYS_READ, uintptr(c.mapped), s.Bytes(make([]byte, 8)), 8)
	do("lead a session", unix.SYS_SETSID)
	do("leave groups", unix.SYS_SETGROUPS, 0, 0)
	do("become the namespace's root group", unix.SYS_SETRESGID, 0, 0, 0)
	// Before it executes: otherwise that takes all capabilities away.
	do("become the namespace's root", unix.SYS_SETRESUID, 0, 0, 0)
	do("go to /", unix.SYS_CHDIR, s.String("/"))
	for k, fd := range p.Files {
		do("place descriptor "+strconv.Itoa(k), unix.SYS_DUP2, uintptr(fd), uintptr(k))
	}
	do("close the others", unix.SYS_CLOSE_RANGE, uintptr(len(p.Files)), 1<<32-1, unix.CLOSE_RANGE_CLOEXEC)
	do("unblock signals", unix.SYS_RT_SIGPROCMASK, 2, s.Bytes(make([]byte, 8)), 0, 8)
	argv, env := s.Strings(p.Argv), s.Strings(p.Env)
	do("execute", unix.SYS_EXECVEAT, uintptr(c.exe), s.String(""), argv, env, unix.AT_EMPTY_PATH)
	return names
}

func bytesOf[T any](v *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v)) }

// writeMaps maps ids 0 to n-1 of a process's user namespace to the host's from base on.
func writeMaps(pid int, base, n uint32) error {
	line := []byte("0 " + strconv.FormatUint(uint64(base), 10) + " " + strconv.FormatUint(uint64(n), 10))
	for _, name := range []string{"/uid_map", "/gid_map"} {
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return errors.New("open id map: " + err.Error())
		}
		_, err = unix.Write(fd, line)
		unix.Close(fd)
		if err != nil {
			return errors.New("write id map: " + err.Error())
		}
	}
	return nil
}
