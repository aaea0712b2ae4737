package initd

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/wire"
)

// signal sends a signal to the leader, or to the whole tree.
func (c *command) signal(sig unix.Signal, tree bool) error {
	switch {
	case c.session != nil:
		return c.session.signal(sig)
	case c.pid <= 0:
		return &wire.Error{Code: wire.CodeWrongState, Message: "the command has not started yet"}
	case tree:
		c.killTree(sig)
	default:
		if err := unix.Kill(c.pid, sig); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return nil
}

// killTree reaches every process of the command. With its control group that is exact for SIGKILL; otherwise it
// is what descends from the leader or shares its session.
func (c *command) killTree(sig unix.Signal) {
	if sig == unix.SIGKILL && c.killFD >= 0 {
		if _, err := unix.Write(c.killFD, []byte{'1'}); err == nil {
			return
		}
	}
	if c.pid > 0 {
		signalTree(c.pid, sig, true)
	}
}

// signalTree signals what descends from a process or shares its session. SIGKILL is repeated until nothing new
// is found, since a process may fork meanwhile.
func signalTree(leader int, sig unix.Signal, self bool) int {
	seen := make(map[int]bool)
	for range 8 {
		fresh := 0
		for _, pid := range descendants(leader) {
			if seen[pid] || pid == leader && !self {
				continue
			}
			seen[pid] = true
			fresh++
			_ = unix.Kill(pid, sig)
		}
		if fresh == 0 || sig != unix.SIGKILL {
			break
		}
	}
	return len(seen)
}

// descendants reads the process table. The leader is included.
func descendants(leader int) []int {
	type proc struct{ parent, session int }
	table := make(map[int]proc)
	dir, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return []int{leader}
	}
	defer unix.Close(dir)
	var fs unix.Statfs_t
	if unix.Fstatfs(dir, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC {
		return []int{leader} // something was mounted or put there
	}
	buf := make([]byte, 16<<10)
	var names []string
	for {
		n, err := unix.ReadDirent(dir, buf)
		if err != nil || n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		fd, err := unix.Openat(dir, name+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		n, _ := unix.Read(fd, buf)
		unix.Close(fd)
		// The second field is a name that may hold anything, blanks and parentheses included.
		k := bytes.LastIndexByte(buf[:max(n, 0)], ')')
		if k < 0 {
			continue
		}
		f := bytes.Fields(buf[k+1 : n])
		if len(f) < 4 {
			continue
		}
		parent, _ := strconv.Atoi(string(f[1]))
		session, _ := strconv.Atoi(string(f[3]))
		table[pid] = proc{parent, session}
	}
	var list []int
	for pid, p := range table {
		if pid == 1 {
			continue
		}
		ok := p.session == leader
		for at, steps := pid, 0; !ok && at > 1 && steps < len(table); steps++ {
			ok = at == leader
			at = table[at].parent
		}
		if ok {
			list = append(list, pid)
		}
	}
	return list
}
