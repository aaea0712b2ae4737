package initd

import (
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/nursery"
	"github.com/opendsec/dsec/guest/stage"
)

// listenFD is where a container's dsec-init finds its listening socket.
const listenFD = 3

// bounding is the set of capabilities that commands can have, root included. It is what container engines
// give, and each one acts only within the sandbox's own namespaces.
var bounding = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_KILL,
	unix.CAP_SETGID, unix.CAP_SETUID, unix.CAP_SETPCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_NET_RAW,
	unix.CAP_SYS_CHROOT, unix.CAP_MKNOD, unix.CAP_AUDIT_WRITE, unix.CAP_SETFCAP,
}

// options are the arguments after the mode.
type options struct {
	stage   string
	profile string
	tasks   []int
	seccomp int
	group   int
	allCaps bool // do not bound the commands' capabilities: in whole systems, and for tests of the defence
	system  bool // the second mode
}

// Main runs dsec-init with its arguments (without the program's name) and does not return.
func Main(args []string) {
	runtime.MemProfileRate = 0 // its table would be scattered over half a megabyte
	if len(args) == 1 && args[0] == "system" {
		fatal("start", serve(&options{seccomp: -1, group: -1, allCaps: true, system: true}))
	}
	if len(args) == 0 || args[0] != "container" {
		fatal("start", unix.EINVAL)
	}
	o, err := parse(args[1:])
	if err != nil {
		fatal("arguments", err)
	}
	fatal("start", serve(o))
}

func parse(args []string) (*options, error) {
	o := &options{seccomp: -1, group: -1}
	for len(args) > 0 {
		name := args[0]
		args = args[1:]
		switch name {
		case "-allcaps":
			o.allCaps = true
			continue
		}
		if len(args) == 0 {
			return nil, unix.EINVAL
		}
		value := args[0]
		args = args[1:]
		switch name {
		case "-stage":
			o.stage = value
		case "-seccomp":
			fd, err := strconv.Atoi(value)
			if err != nil {
				return nil, err
			}
			o.seccomp = fd
		case "-group":
			fd, err := strconv.Atoi(value)
			if err != nil {
				return nil, err
			}
			o.group = fd
		case "-apparmor":
			o.profile = value
		case "-tasks":
			for _, v := range strings.Split(value, ",") {
				if v == "" {
					continue
				}
				fd, err := strconv.Atoi(v)
				if err != nil {
					return nil, err
				}
				o.tasks = append(o.tasks, fd)
			}
		default:
			return nil, unix.EINVAL
		}
	}
	if o.stage == "" {
		return nil, unix.EINVAL
	}
	return o, nil
}

// serve prepares everything that is dear, then serves; it returns only with the error that ended it.
func serve(o *options) error {
	// Before anything else: from here nothing in the user namespace can look into this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	if err := unix.CloseRange(0, 1<<16, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return err
	}
	limits()
	unix.Umask(0) // modes are always said
	i, err := newInit()
	if err != nil {
		return err
	}
	if o.system {
		// Orphans of commands are this process's, as in a namespace of its own.
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return err
		}
		i.system = true
		i.stage, err = stage.System()
	} else {
		i.stage, err = stage.Prepare(o.stage)
	}
	if err != nil {
		return err
	}
	if i.nursery, err = nursery.New(); err != nil {
		return err
	}
	childFD, err := nursery.TakeSignals()
	if err != nil {
		return err
	}
	if err := i.confine(o); err != nil {
		return err
	}
	if err := i.watchChildren(childFD); err != nil {
		return err
	}
	i.listen = listenFD
	if err := unix.SetNonblock(listenFD, true); err != nil {
		return err
	}
	if err := i.poll.add(listenFD, unix.EPOLLIN, fdWatcher(i.accept)); err != nil {
		return err
	}
	return i.run()
}

// confine takes the nursery, and so every command, into the sandbox's v1 groups, out of all capabilities that it
// does not need, and under the filter.
func (i *Init) confine(o *options) error {
	filter, err := readFilter(o.seccomp)
	if err != nil {
		return err
	}
	s, err := i.nursery.NewScript(64+len(o.tasks), len(filter)+len(o.profile)+256)
	if err != nil {
		return err
	}
	defer s.Free()
	if o.profile != "" {
		// A thread says what profile its next exec changes to; what it forks inherits that. It writes itself, through a
		// descriptor of its process.
		fd, err := unix.Open("/proc/self/task/"+strconv.Itoa(i.nursery.TID())+"/attr/apparmor/exec", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		line := "exec " + o.profile
		s.Do(0, unix.SYS_WRITE, uintptr(fd), s.String(line), uintptr(len(line)))
	}
	zero := s.String("0")
	for _, fd := range o.tasks {
		s.Do(0, unix.SYS_WRITE, uintptr(fd), zero, 1)
	}
	if o.group >= 0 {
		// All by the nursery: a control-group namespace belongs to a thread. The groups of this moment become its root.
		s.Do(0, unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP)
		s.Do(0, unix.SYS_WRITE, uintptr(o.group), zero, 1)
		const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY
		fs := s.String("cgroup2")
		// Optional: programs that look for their limits do without.
		s.Do(nursery.May, unix.SYS_MOUNT, fs, s.String("/sys/fs/cgroup"), fs, flags, 0)
	}
	s.Do(0, unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if !o.allCaps {
		for c := range uintptr(unix.CAP_LAST_CAP + 1) {
			if !contains(bounding, c) {
				// A capability that this kernel does not know, or that is gone already: fine.
				s.Do(nursery.May, unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
			}
		}
	}
	if len(filter) > 0 {
		prog := unix.SockFprog{Len: uint16(len(filter) / 8)}
		addr := s.Bytes(filter)
		head := make([]byte, unsafe.Sizeof(prog))
		head[0], head[1] = byte(prog.Len), byte(prog.Len>>8)
		*(*uintptr)(unsafe.Pointer(&head[8])) = addr
		s.Do(0, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, s.Bytes(head))
	}
	if err := i.nursery.RunWait(s); err != nil {
		return err
	}
	for _, fd := range append(o.tasks, o.group) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
	return nil
}

func contains(l []uintptr, v uintptr) bool {
	for _, x := range l {
		if x == v {
			return true
		}
	}
	return false
}

// readFilter reads a raw BPF program: at most 4096 instructions of 8 bytes. The descriptor shares its offset with
// those of other shells: it is read from its beginning, wherever that stands.
func readFilter(fd int) ([]byte, error) {
	if fd < 0 {
		return nil, nil
	}
	defer unix.Close(fd)
	b := make([]byte, 4096*8+1)
	size := 0
	for size < len(b) {
		n, err := unix.Pread(fd, b[size:], int64(size))
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		size += n
	}
	if size == 0 || size%8 != 0 || size == len(b) {
		return nil, unix.EINVAL
	}
	return b[:size], nil
}
