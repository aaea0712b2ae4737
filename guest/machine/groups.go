package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
)

// freezeWait bounds a freeze.
const freezeWait = 10 * time.Second

// SessionGroup is what the control group of a session is called.
func SessionGroup(id string) string { return "session-" + id }

// groups makes the control groups of commands, below work.
type groups struct {
	mu sync.Mutex
}

// path of a command's group; "" for a name that cannot be one.
func (*groups) path(name string) string {
	if name == "" || len(name) > 200 || strings.ContainsAny(name, "/\x00\n") || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "cgroup.") {
		return ""
	}
	return filepath.Join(workGroup, name)
}

// make makes a group and opens what dsec-init wants of it; nothing where that fails: the command then runs with the
// sandbox's limits alone.
func (g *groups) make(name string) []*os.File {
	g.mu.Lock()
	defer g.mu.Unlock()
	dir := g.path(name)
	if dir == "" {
		return nil
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return nil
	}
	procs, err := os.OpenFile(dir+"/cgroup.procs", os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	kill, err := os.OpenFile(dir+"/cgroup.kill", os.O_WRONLY, 0)
	if err != nil {
		procs.Close()
		return nil
	}
	return []*os.File{procs, kill}
}

// look reads what is known of a group.
func (g *groups) look(name string) (*control.Group, error) {
	dir := g.path(name)
	events, err := os.ReadFile(dir + "/cgroup.events")
	if dir == "" || err != nil {
		return nil, errNoGroup
	}
	return &control.Group{Empty: bytes.Contains(events, []byte("populated 0")), OOMKills: oomKills(dir)}, nil
}

// oomKills counts memory kills in a group and those below.
func oomKills(dir string) (n int64) {
	b, _ := os.ReadFile(dir + "/memory.events")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			n, _ = strconv.ParseInt(v, 10, 64)
		}
	}
	return n
}

// stats reads what all commands use; what cannot be read is 0.
func (*groups) stats() *control.Stats {
	number := func(name string) int64 {
		b, _ := os.ReadFile(workGroup + "/" + name)
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return n
	}
	return &control.Stats{Memory: number("memory.current"), MemoryPeak: number("memory.peak"), Pids: number("pids.current"), OOMKills: oomKills(workGroup)}
}

// signal signals all processes of a group; 9 by the kernel at once, so that none escapes by forking.
func (g *groups) signal(name string, sig int) error {
	dir := g.path(name)
	if dir == "" {
		return errNoGroup
	}
	if sig == 9 {
		if err := os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0); err != nil {
			return errNoGroup
		}
		return nil
	}
	pids, err := os.ReadFile(dir + "/cgroup.procs")
	if err != nil {
		return errNoGroup
	}
	for _, p := range strings.Fields(string(pids)) {
		if pid, err := strconv.Atoi(p); err == nil && pid > 0 {
			_ = unix.Kill(pid, unix.Signal(sig)) // gone: fine
		}
	}
	return nil
}

// Groups that programs make below their command's, where they have namespaces of their own.
const (
	maxDepth    = 8               // of groups below work
	maxGroups   = 32 << 10        // below work, the commands' with them
	removalWait = 1 * time.Second // for a group without processes that others keep making groups in
)

// remove kills what is left and removes the group, with those that programs have made in it. Whoever asks waits, and all commands'
// ends with it: what cannot be removed stays until the machine ends.
func (g *groups) remove(name string) error {
	var empty time.Time // since when no process is in it
	for deadline := time.Now().Add(deviceWait); ; time.Sleep(2 * time.Millisecond) {
		if err := g.signal(name, 9); err != nil {
			return nil // gone
		}
		if removeTree(g.path(name), maxDepth) {
			return nil
		}
		now := time.Now()
		if st, err := g.look(name); err != nil || !st.Empty {
			empty = time.Time{}
		} else if empty.IsZero() {
			empty = now
		}
		if now.After(deadline) || !empty.IsZero() && now.Sub(empty) > removalWait {
			return fmt.Errorf("group %s cannot be removed", name)
		}
	}
}

// removeTree removes a group whose processes were killed, and at most so many levels below it; false: something is left.
func removeTree(dir string, levels int) bool {
	if err := unix.Rmdir(dir); err == nil || err == unix.ENOENT {
		return true
	}
	entries, err := os.ReadDir(dir)
	if err != nil || levels == 0 {
		return os.IsNotExist(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			removeTree(filepath.Join(dir, e.Name()), levels-1)
		}
	}
	err = unix.Rmdir(dir)
	return err == nil || err == unix.ENOENT
}

// freeze stops all commands, or lets them go on.
func (g *groups) freeze(on bool) error {
	if _, err := os.Stat(workGroup); os.IsNotExist(err) {
		return nil // a whole system that has none
	}
	value, want := "0", "frozen 0"
	if on {
		value, want = "1", "frozen 1"
	}
	if err := os.WriteFile(workGroup+"/cgroup.freeze", []byte(value), 0); err != nil {
		return err
	}
	for deadline := time.Now().Add(freezeWait); ; time.Sleep(time.Millisecond) {
		b, err := os.ReadFile(workGroup + "/cgroup.events")
		if err != nil {
			return err
		}
		if bytes.Contains(b, []byte(want)) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes do not stop")
		}
	}
}

// clear removes all groups of commands, whose processes have been killed, and makes the group whole again for the next
// dsec-init to be born in.
func (g *groups) clear() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	entries, err := os.ReadDir(workGroup)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(workGroup, e.Name())
		_ = os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0)
		if err := await("end of group "+e.Name(), func() bool { return removeTree(dir, maxDepth) }); err != nil {
			return err
		}
	}
	for _, kv := range [][2]string{{"cgroup.subtree_control", "-memory"}, {"memory.max", "max"}, {"pids.max", "max"}, {"cgroup.freeze", "0"}} {
		if err := os.WriteFile(workGroup+"/"+kv[0], []byte(kv[1]), 0); err != nil {
			return fmt.Errorf("lift limits: %w", err)
		}
	}
	return nil
}

// limit bounds all commands together, and divides their group once dsec-init has left it.
func (g *groups) limit(memory, pids int64) error {
	err := await("dsec-init in its group", func() bool {
		b, err := os.ReadFile(workGroup + "/cgroup.procs")
		return err == nil && len(b) == 0
	})
	if err != nil {
		return err
	}
	for _, kv := range [][2]string{
		{"memory.max", strconv.FormatInt(memory, 10)}, {"pids.max", strconv.FormatInt(pids, 10)}, {"cgroup.subtree_control", "+memory"},
		{"cgroup.max.depth", strconv.Itoa(maxDepth)}, {"cgroup.max.descendants", strconv.Itoa(maxGroups)},
	} {
		if err := os.WriteFile(workGroup+"/"+kv[0], []byte(kv[1]), 0); err != nil {
			return fmt.Errorf("limit: %w", err)
		}
	}
	return nil
}
