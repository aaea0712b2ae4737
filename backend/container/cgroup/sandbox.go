package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Sandbox is the groups of one sandbox.
type Sandbox struct {
	tree *Tree
	name string
	dir  string // in the v2 tree
}

// Sandbox names the groups of a sandbox; it makes nothing.
func (t *Tree) Sandbox(name string) *Sandbox {
	return &Sandbox{tree: t, name: name, dir: filepath.Join(t.v2, name)}
}

// Make makes the groups.
func (s *Sandbox) Make() error {
	for _, d := range []string{s.dir, s.dir + "/init", s.dir + "/work"} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
	}
	if s.tree.pure() {
		if err := enable(s.dir, required, optional); err != nil {
			return err
		}
	}
	for _, root := range s.tree.roots()[1:] {
		if err := os.Mkdir(filepath.Join(root, s.name), 0o755); err != nil {
			return fmt.Errorf("make control group: %w", err)
		}
	}
	return nil
}

// Open opens the sandbox's group in the v2 tree.
func (s *Sandbox) Open() (*os.File, error) {
	return linux.OpenPlain(s.dir, os.O_RDONLY|syscall.O_DIRECTORY)
}

// Birth opens the group that dsec-init is cloned into: work, which is then the root of what the sandbox sees as its
// control groups. It makes that its namespace and leaves for init at once.
func (s *Sandbox) Birth() (*os.File, error) {
	return linux.OpenPlain(s.dir+"/work", os.O_RDONLY|syscall.O_DIRECTORY)
}

// InitProcs opens the file by which dsec-init joins init.
func (s *Sandbox) InitProcs() (*os.File, error) {
	return linux.OpenPlain(s.dir+"/init/cgroup.procs", os.O_WRONLY)
}

// Divide makes work one that is divided between commands, so that memory kills are counted for each. Call it once
// dsec-init has left work.
func (s *Sandbox) Divide() error {
	if !s.tree.pure() {
		return nil
	}
	return enable(s.dir+"/work", []string{"memory"}, nil)
}

// TaskFiles opens the v1 `tasks` files that the nursery thread joins; none on a pure v2 host. The caller
// closes them.
func (s *Sandbox) TaskFiles() ([]*os.File, error) {
	var out []*os.File
	for _, root := range s.tree.roots()[1:] {
		f, err := linux.OpenPlain(filepath.Join(root, s.name, "tasks"), os.O_WRONLY)
		if err != nil {
			for _, o := range out {
				o.Close()
			}
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// v1 returns a file of the sandbox's group in a v1 hierarchy.
func (s *Sandbox) v1(controller, file string) string {
	return filepath.Join(s.tree.v1[controller], s.name, file)
}

// cpuPeriod is the CFS bandwidth period, microseconds.
const cpuPeriod = 100_000

// SetLimits writes the limits on the sandbox's work.
func (s *Sandbox) SetLimits(l sandbox.Limits) error {
	quota := strconv.FormatInt(l.CPUMillis*cpuPeriod/1000, 10)
	mem, pids := strconv.FormatInt(l.MemoryBytes, 10), strconv.FormatInt(l.Pids, 10)
	var sets [][2]string
	if s.tree.pure() {
		w := s.dir + "/work/"
		sets = [][2]string{{w + "memory.max", mem}, {w + "pids.max", pids}, {w + "cpu.max", quota + " " + strconv.Itoa(cpuPeriod)}}
		// Optional: no swap in the kernel, no file.
		_ = write(w+"memory.swap.max", "0")
	} else {
		sets = [][2]string{{s.v1("memory", "memory.limit_in_bytes"), mem}, {s.v1("pids", "pids.max"), pids},
			{s.v1("cpu", "cpu.cfs_quota_us"), quota}}
	}
	for _, kv := range sets {
		if err := write(kv[0], kv[1]); err != nil {
			return fmt.Errorf("set limit %s to %s: %w", filepath.Base(kv[0]), kv[1], err)
		}
	}
	if !s.tree.pure() {
		if err := s.limitSockets(l.MemoryBytes); err != nil {
			return err
		}
	}
	return s.setIO(l)
}

// maxSocketBytes is what a sandbox's network buffers may take on hybrid hosts; loopback needs little.
const maxSocketBytes = 32 << 20

// limitSockets bounds the memory of network buffers, which v1 counts apart from the rest, if at all: one sandbox could
// fill the pool that all connections of the node, the API's included, share.
func (s *Sandbox) limitSockets(memory int64) error {
	err := write(s.v1("memory", "memory.kmem.tcp.limit_in_bytes"), strconv.FormatInt(min(memory/4, maxSocketBytes), 10))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("limit memory of sockets: %w", err)
	}
	return nil
}

// setIO limits block I/O on every disk of the node.
func (s *Sandbox) setIO(l sandbox.Limits) error {
	if l.IOReadBPS == 0 && l.IOWriteBPS == 0 {
		return nil
	}
	devs, err := disks()
	if err != nil {
		return err
	}
	if !s.tree.pure() {
		if err := s.join("blkio"); err != nil {
			return err
		}
	}
	for _, d := range devs {
		if s.tree.pure() {
			v := d
			if l.IOReadBPS > 0 {
				v += " rbps=" + strconv.FormatInt(l.IOReadBPS, 10)
			}
			if l.IOWriteBPS > 0 {
				v += " wbps=" + strconv.FormatInt(l.IOWriteBPS, 10)
			}
			err = write(s.dir+"/work/io.max", v)
		} else {
			if l.IOReadBPS > 0 {
				err = write(s.v1("blkio", "blkio.throttle.read_bps_device"), d+" "+strconv.FormatInt(l.IOReadBPS, 10))
			}
			if l.IOWriteBPS > 0 && err == nil {
				err = write(s.v1("blkio", "blkio.throttle.write_bps_device"), d+" "+strconv.FormatInt(l.IOWriteBPS, 10))
			}
		}
		if err != nil {
			return fmt.Errorf("limit I/O on device %s: %w", d, err)
		}
	}
	return nil
}

// join makes the sandbox's group of a controller that it has not joined from the beginning, and moves dsec-init there,
// all its threads: what is limited are the commands it starts, and its own work on files.
func (s *Sandbox) join(controller string) error {
	root := s.tree.v1[controller]
	if root == "" {
		return fmt.Errorf("controller %s: %w: the host does not have it", controller, sandbox.ErrUnsupported)
	}
	dir := filepath.Join(root, s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make control group: %w", err)
	}
	pids, err := linux.ReadPlain(s.dir + "/init/cgroup.procs")
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(pids)) {
		if err := write(dir+"/cgroup.procs", pid); err != nil {
			return fmt.Errorf("join control group: %w", err)
		}
	}
	return nil
}

// disks lists the block devices of the node as "major:minor".
func disks() ([]string, error) {
	ents, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range ents {
		size, err := readInt("/sys/block/" + e.Name() + "/size")
		if err != nil || size == 0 {
			continue
		}
		if b, err := os.ReadFile("/sys/block/" + e.Name() + "/dev"); err == nil {
			out = append(out, string(b[:max(len(b)-1, 0)]))
		}
	}
	return out, nil
}

// Freeze stops all of the sandbox's work; Thaw lets it go on. dsec-init is not frozen.
func (s *Sandbox) Freeze() error { return write(s.dir+"/work/cgroup.freeze", "1") }

// Thaw undoes Freeze.
func (s *Sandbox) Thaw() error { return write(s.dir+"/work/cgroup.freeze", "0") }

// Frozen tells whether every process of the sandbox's work has stopped.
func (s *Sandbox) Frozen() (bool, error) {
	n, err := readKey(s.dir+"/work/cgroup.events", "frozen")
	return n == 1, err
}

// Kill ends every process of the sandbox, dsec-init too.
func (s *Sandbox) Kill() error {
	err := write(s.dir+"/cgroup.kill", "1")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// Remove removes the groups; every process must have ended (os.ErrExist-like EBUSY otherwise).
func (s *Sandbox) Remove() error {
	errs := []error{removeAll(s.dir)}
	for _, root := range s.tree.all()[1:] {
		errs = append(errs, removeAll(filepath.Join(root, s.name)))
	}
	return errors.Join(errs...)
}

// removeAll removes a group and those below it, deepest first.
func removeAll(dir string) error {
	err := os.Remove(dir) // rmdir: the files of a group do not count
	if err == nil || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ents, rerr := os.ReadDir(dir)
	if rerr != nil {
		return rerr
	}
	for _, e := range ents {
		if e.IsDir() {
			if err := removeAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return rmdir(dir)
}

func rmdir(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove control group: %w", err)
	}
	return nil
}
