package initd_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

// filter denies one system call.
func filter(nr uint32) []byte {
	var b []byte
	for _, f := range []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x00050000 | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000},
	} {
		b = binary.NativeEndian.AppendUint16(b, f.Code)
		b = append(b, f.Jt, f.Jf)
		b = binary.NativeEndian.AppendUint32(b, f.K)
	}
	return b
}

func TestFilter(t *testing.T) {
	for _, noNew := range []bool{false, true} {
		s, c, r := guesttest.Sandbox(t, guesttest.Options{Filter: filter(unix.SYS_MKDIR)}, &wire.Claim{NoNewPrivileges: noNew})
		ctx, cancel := guesttest.Context(t)
		defer cancel()
		b := &box{Shell: s, t: t, c: c, r: r, ctx: ctx}
		if got := b.sh("mkdir /x 2>/dev/null || echo denied; sh -c 'mkdir /x' 2>/dev/null || echo denied; grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status"); got != fmt.Sprintf("denied\ndenied\nNoNewPrivs:\t%d\nSeccomp:\t2\n", map[bool]int{true: 1}[noNew]) {
			t.Errorf("%q", got)
		}
		// It binds commands, not dsec-init.
		if err := c.Mkdir(ctx, "/x", "", false, 0); err != nil {
			t.Error(err)
		}
		st, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
		if err != nil || !strings.Contains(string(st), "Seccomp:\t0\n") {
			t.Errorf("%s %v", st, err)
		}
	}
}

// TestGroupsV1: commands are in the groups that their thread was put into, and their limits do not touch
// dsec-init.
func TestGroupsV1(t *testing.T) {
	const root = "/sys/fs/cgroup/pids"
	if _, err := os.Stat(root + "/tasks"); err != nil {
		t.Skip("no cgroup v1 pids hierarchy")
	}
	dir := filepath.Join(root, fmt.Sprintf("initd-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := guesttest.Context(t)
	defer cancel()
	t.Cleanup(func() {
		// Registered first, so run last: the sandbox has been killed.
		for {
			if err := os.Remove(dir); err == nil || os.IsNotExist(err) || ctx.Err() != nil {
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "pids.max"), []byte("10"), 0); err != nil {
		t.Fatal(err)
	}
	tasks, err := os.OpenFile(filepath.Join(dir, "tasks"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tasks.Close()
	s, c, r := guesttest.Sandbox(t, guesttest.Options{CgroupV1: []*os.File{tasks}}, nil)
	b := &box{Shell: s, t: t, c: c, r: r, ctx: ctx}
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", s.PID))
	if err != nil || strings.Contains(string(own), filepath.Base(dir)) {
		t.Errorf("dsec-init is in the commands' group: %s %v", own, err)
	}
	started := 0
	for range 20 {
		_, err := c.Start(ctx, &wire.Start{ID: id(), Argv: []string{"sleep", "1000"}}, nil)
		if code(err) == wire.CodeExhausted {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		started++
	}
	if started != 9 { // and the thread that forks them
		t.Errorf("%d started", started)
	}
	// Files go on all the same.
	if err := b.write(wire.OpenWrite{Path: "/still"}, "works"); err != nil {
		t.Error(err)
	}
}
