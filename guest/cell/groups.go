package cell

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// roots are the directories below which slots make their groups; -1 = the v2 tree has that controller.
type roots struct {
	v2, memory, pids, cpu int
	init                  int // v2 group of the cells' first processes
}

func openDir(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, wrap("open "+path, err)
	}
	return fd, nil
}

func openRoots(g *Groups) (*roots, error) {
	r := &roots{v2: -1, memory: -1, pids: -1, cpu: -1}
	for _, o := range []struct {
		path string
		fd   *int
	}{{g.V2, &r.v2}, {g.Memory, &r.memory}, {g.Pids, &r.pids}, {g.CPU, &r.cpu}} {
		if o.path == "" {
			continue
		}
		var err error
		if *o.fd, err = openDir(o.path); err != nil {
			return nil, err
		}
	}
	var err error
	r.init, err = makeGroup(r.v2, "init")
	return r, err
}

func makeGroup(parent int, name string) (int, error) {
	if err := unix.Mkdirat(parent, name, 0o755); err != nil && err != unix.EEXIST {
		return -1, wrap("make control group "+name, err)
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return fd, wrap("open control group "+name, err)
}

// group are a slot's control groups, open. Files that this kind of host does not have are -1.
type group struct {
	dir                        int // v2
	memory, pids, cpu          int // v1: tasks
	memoryMax, pidsMax         int
	cpuStat, peak, oom         int
	v1                         bool
	memoryLimit, pidsLimit     int64 // as last set
	cpuBase, oomBase, peakBase int64
}

func (r *roots) newGroup(name string) (*group, error) {
	g := &group{memory: -1, pids: -1, cpu: -1, peak: -1, v1: r.memory >= 0}
	var err error
	if g.dir, err = makeGroup(r.v2, name); err != nil {
		return nil, err
	}
	open := func(dir int, file string, flags int) (fd int) {
		if err != nil {
			return -1
		}
		fd, err = unix.Openat(dir, file, flags|unix.O_CLOEXEC, 0)
		err = wrap("open "+file+" of control group "+name, err)
		return fd
	}
	v1 := func(parent int) (fd int) {
		if err != nil {
			return -1
		}
		fd, err = makeGroup(parent, name)
		return fd
	}
	g.cpuStat = open(g.dir, "cpu.stat", unix.O_RDONLY)
	if !g.v1 {
		g.memoryMax = open(g.dir, "memory.max", unix.O_WRONLY)
		g.pidsMax = open(g.dir, "pids.max", unix.O_WRONLY)
		g.peak = open(g.dir, "memory.peak", unix.O_RDWR)
		g.oom = open(g.dir, "memory.events", unix.O_RDONLY)
		if swap, serr := unix.Openat(g.dir, "memory.swap.max", unix.O_WRONLY|unix.O_CLOEXEC, 0); serr == nil {
			_, _ = unix.Write(swap, []byte("0")) // a limit on memory that swaps is none
			unix.Close(swap)
		}
		return g, err
	}
	memory := v1(r.memory)
	g.memory = open(memory, "tasks", unix.O_WRONLY)
	g.memoryMax = open(memory, "memory.limit_in_bytes", unix.O_WRONLY)
	g.peak = open(memory, "memory.max_usage_in_bytes", unix.O_RDWR)
	g.oom = open(memory, "memory.oom_control", unix.O_RDONLY)
	pids := v1(r.pids)
	g.pids = open(pids, "tasks", unix.O_WRONLY)
	g.pidsMax = open(pids, "pids.max", unix.O_WRONLY)
	if r.cpu >= 0 {
		cpu := v1(r.cpu)
		g.cpu = open(cpu, "tasks", unix.O_WRONLY)
		unix.Close(cpu)
	}
	unix.Close(memory)
	unix.Close(pids)
	return g, err
}

// limit sets what the next call may use.
func (g *group) limit(l *Limits) error {
	if g.memoryLimit != l.Memory {
		if _, err := unix.Pwrite(g.memoryMax, strconv.AppendInt(nil, l.Memory, 10), 0); err != nil {
			return wrap("limit memory", err)
		}
		g.memoryLimit = l.Memory
	}
	if g.pidsLimit != l.Pids {
		if _, err := unix.Pwrite(g.pidsMax, strconv.AppendInt(nil, l.Pids, 10), 0); err != nil {
			return wrap("limit processes", err)
		}
		g.pidsLimit = l.Pids
	}
	return nil
}

// begin notes the counters of an empty group.
func (g *group) begin() {
	reset := "0"
	if !g.v1 {
		reset = "reset" // since Linux 6.12, for this descriptor
	}
	_, _ = unix.Pwrite(g.peak, []byte(reset), 0)
	// Pages of the base that earlier calls were the first to read stay charged to the group, until they are wanted back.
	g.peakBase = 0
	g.peakBase = g.peakBytes()
	g.cpuBase, g.oomBase = g.cpuMicros(0), g.key(g.oom, "oom_kill")
}

// cpuMicros is the processor time since begin.
func (g *group) cpuMicros(base int64) int64 { return g.key(g.cpuStat, "usage_usec") - base }

// oomKills is how many processes the kernel's memory killer took since begin.
func (g *group) oomKills() int64 { return g.key(g.oom, "oom_kill") - g.oomBase }

// peakBytes is the most memory that was used since begin.
func (g *group) peakBytes() int64 {
	var buf [32]byte
	n, err := unix.Pread(g.peak, buf[:], 0)
	if err != nil {
		return 0
	}
	v, _ := number(buf[:n])
	return max(v-g.peakBase, 0)
}

// key reads the number behind a key in a file of "key number" lines.
func (g *group) key(fd int, key string) int64 {
	var buf [1024]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return 0
	}
	b := buf[:n]
	for len(b) > 0 {
		if len(b) > len(key) && string(b[:len(key)]) == key && b[len(key)] == ' ' {
			v, _ := number(b[len(key)+1:])
			return v
		}
		for len(b) > 0 && b[0] != '\n' {
			b = b[1:]
		}
		if len(b) > 0 {
			b = b[1:]
		}
	}
	return 0
}

// number reads digits up to something else.
func number(b []byte) (v int64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		v, ok = v*10+int64(c-'0'), true
	}
	return v, ok
}
