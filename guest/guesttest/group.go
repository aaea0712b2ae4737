package guesttest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Group is a control group of the v2 tree, as the edge makes one for each command.
type Group struct {
	Path string
	t    testing.TB
}

var groups atomic.Int64

// NewGroup makes a group. When the test ends, what is in it is killed and it is removed.
func NewGroup(t testing.TB) *Group {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(root + "/unified/cgroup.procs"); err == nil {
		root += "/unified"
	}
	name := "guesttest-" + strconv.Itoa(os.Getpid()) + "-" + strconv.FormatInt(groups.Add(1), 10)
	g := &Group{Path: filepath.Join(root, name), t: t}
	must(t, os.Mkdir(g.Path, 0o755))
	t.Cleanup(func() {
		os.WriteFile(filepath.Join(g.Path, "cgroup.kill"), []byte("1"), 0)
		ctx, cancel := Context(t)
		defer cancel()
		g.WaitEmpty(ctx)
		if err := os.Remove(g.Path); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Files are cgroup.procs and cgroup.kill, open for writing until the test ends.
func (g *Group) Files() []*os.File {
	g.t.Helper()
	var l []*os.File
	for _, name := range []string{"cgroup.procs", "cgroup.kill"} {
		f, err := os.OpenFile(filepath.Join(g.Path, name), os.O_WRONLY, 0)
		must(g.t, err)
		g.t.Cleanup(func() { f.Close() })
		l = append(l, f)
	}
	return l
}

// WaitEmpty waits until no process is left in the group.
func (g *Group) WaitEmpty(ctx context.Context) {
	g.t.Helper()
	for {
		b, err := os.ReadFile(filepath.Join(g.Path, "cgroup.events"))
		if err != nil || strings.Contains(string(b), "populated 0") {
			return
		}
		if ctx.Err() != nil {
			g.t.Errorf("group %s is not empty", g.Path)
			return
		}
		time.Sleep(time.Millisecond)
	}
}
