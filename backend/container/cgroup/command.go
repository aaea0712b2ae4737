package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Command is the group of one command; it implements sandbox.Group.
type Command struct {
	s     *Sandbox
	dir   string
	files []*os.File
	oom   int64 // hybrid: the sandbox's count when the group was made
}

// MakeCommand makes a command's group and opens what dsec-init gets.
func (s *Sandbox) MakeCommand(name string) (*Command, error) {
	c := &Command{s: s, dir: s.dir + "/work/" + name}
	if err := s.room(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(c.dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) { // it may have been prepared
		return nil, fmt.Errorf("make control group of command: %w", err)
	}
	for _, f := range []string{"cgroup.procs", "cgroup.kill"} {
		h, err := linux.OpenPlain(c.dir+"/"+f, os.O_WRONLY)
		if err != nil {
			_ = c.Remove()
			return nil, err
		}
		c.files = append(c.files, h)
	}
	var err error
	if c.oom, err = s.oomBase(); err != nil {
		_ = c.Remove()
		return nil, err
	}
	return c, nil
}

// PrepareCommand makes a command's group ahead of time, where that is possible.
func (s *Sandbox) PrepareCommand(name string) { _ = os.Mkdir(s.dir+"/work/"+name, 0o755) }

// room refuses one more command where the processes have reached their limit: v2 takes a process that joins a group
// whatever the limit says, and only its children are refused. On hybrid hosts the fork itself fails.
func (s *Sandbox) room() error {
	if !s.tree.pure() {
		return nil
	}
	limit, err := readInt(s.dir + "/work/pids.max")
	if err != nil {
		return nil // "max", or no group: what follows will tell
	}
	n, err := readInt(s.dir + "/work/pids.current")
	if err == nil && n >= limit {
		return fmt.Errorf("%w: the sandbox's limit of %d processes is reached", sandbox.ErrExhausted, limit)
	}
	return err
}

// oomBase is what OOMKills of a command made now must not count.
func (s *Sandbox) oomBase() (int64, error) {
	if s.tree.pure() {
		return 0, nil
	}
	return s.OOMKills()
}

// OpenCommand finds the group of a command made by an earlier process.
func (s *Sandbox) OpenCommand(name string) (*Command, error) {
	c := &Command{s: s, dir: s.dir + "/work/" + name}
	if _, err := os.Stat(c.dir); err != nil {
		return nil, fmt.Errorf("control group of command %s: %w", name, sandbox.ErrNotFound)
	}
	var err error
	if c.oom, err = s.oomBase(); err != nil {
		return nil, err
	}
	return c, nil
}

// Commands names the groups that exist.
func (s *Sandbox) Commands() ([]string, error) {
	ents, err := os.ReadDir(s.dir + "/work")
	if err != nil {
		return nil, fmt.Errorf("list control groups of commands: %w", err)
	}
	var out []string
	for _, e := range ents {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Files returns cgroup.procs and cgroup.kill.
func (c *Command) Files() []*os.File { return c.files }

// CloseFiles closes them.
func (c *Command) CloseFiles() {
	for _, f := range c.files {
		f.Close()
	}
	c.files = nil
}

// Kill ends every process of the command.
func (c *Command) Kill() error {
	err := write(c.dir+"/cgroup.kill", "1")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Signal sends a signal to every process of the command, in a few rounds because it may fork meanwhile.
func (c *Command) Signal(sig int) error {
	if sig == int(syscall.SIGKILL) {
		return c.Kill()
	}
	done := map[int]bool{}
	for range 3 {
		pids, err := c.pids()
		if err != nil {
			return err
		}
		fresh := false
		for _, p := range pids {
			if !done[p] {
				done[p], fresh = true, true
				if err := syscall.Kill(p, syscall.Signal(sig)); err != nil && err != syscall.ESRCH {
					return fmt.Errorf("signal process %d: %w", p, err)
				}
			}
		}
		if !fresh {
			return nil
		}
	}
	return nil
}

func (c *Command) pids() ([]int, error) {
	f, err := os.Open(c.dir + "/cgroup.procs")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []int
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if n, err := strconv.Atoi(sc.Text()); err == nil && n > 0 {
			out = append(out, n)
		}
	}
	return out, sc.Err()
}

// Empty tells whether no process is left.
func (c *Command) Empty() (bool, error) {
	n, err := readKey(c.dir+"/cgroup.events", "populated")
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	return n == 0, err
}

// OOMKills counts memory kills of the command's processes; on hybrid hosts those of the whole sandbox since the group
// was made. One process at a time is killed, not the group: so it is on both kinds of host.
func (c *Command) OOMKills() (int64, error) {
	if c.s.tree.pure() {
		return readKey(c.dir+"/memory.events", "oom_kill")
	}
	n, err := c.s.OOMKills()
	return n - c.oom, err
}

// Remove kills what is left and removes the group. EBUSY: processes are still dying.
func (c *Command) Remove() error {
	c.CloseFiles()
	err := os.Remove(c.dir)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := c.Kill(); err != nil {
		return err
	}
	return waitEmpty(c.dir)
}

// readInt reads a file that holds one number.
func readInt(path string) (int64, error) {
	b, err := linux.ReadPlain(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// readKey reads the number behind a key in a file of "key number" lines.
func readKey(path, key string) (int64, error) {
	b, err := linux.ReadPlain(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			return strconv.ParseInt(v, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s: no line %q", path, key)
}
