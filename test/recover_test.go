package test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/container/cgroup"
)

// commandGroups names the control groups of commands in a sandbox.
func (n *node) commandGroups(id string) []string {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.state, "run", "cgroups.json"))
	var l cgroup.Layout
	if err == nil {
		err = json.Unmarshal(b, &l)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	ents, err := os.ReadDir(filepath.Join(l.V2, id, "work"))
	if err != nil {
		n.t.Fatal(err)
	}
	var out []string
	for _, e := range ents {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// eventually waits until cond is true, for what no event announces.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// crash kills every process of the node.
func (n *node) crash() {
	n.t.Helper()
	p := n.processes()
	pids := []int{p["up"]} // first: it starts the others again
	for name, pid := range p {
		if name != "up" {
			pids = append(pids, pid)
		}
	}
	n.kill9(pids...)
	for _, p := range pids {
		eventually(n.t, "process ends", func() bool {
			b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/stat")
			return err != nil || bytes.Contains(b, []byte(") Z "))
		})
	}
}

// TestGroupsAreSweptAtRestart: control groups of commands that ended are removed when the edge comes back, as soon as
// nothing lives in them; what does is left alone.
func TestGroupsAreSweptAtRestart(t *testing.T) {
	n := startNode(t)
	id := n.create(1, nil)[0]
	n.must(id, "(sleep 2 >/dev/null 2>&1 &) ; true")
	n.must(id, "(sleep 1000 >/dev/null 2>&1 &) ; true")
	if got := n.commandGroups(id); len(got) != 2 {
		t.Fatalf("groups %q", got)
	}
	n.crash()
	eventually(t, "the short one ends", func() bool { return n.insideHas(id, "sleep 2 ") == 0 })
	n.up()
	eventually(t, "its group is removed", func() bool { return len(n.commandGroups(id)) == 1 })
	if out := n.must(id, "pgrep -c sleep"); out != "1\n" {
		t.Errorf("processes left behind by commands: %q", out)
	}
	if _, err := n.Client.Sandboxes.StopSandbox(t.Context(), &dsecv1.StopSandboxRequest{SandboxId: id}); err != nil {
		t.Error(err)
	}
}

// insideHas counts the sandbox's processes whose command line begins with the words.
func (n *node) insideHas(id, words string) (count int) {
	n.t.Helper()
	pids, err := n.initPIDs(id)
	if err != nil {
		n.t.Fatal(err)
	}
	ns := func(pid string) string { l, _ := os.Readlink("/proc/" + pid + "/ns/pid"); return l }
	own := ns(strconv.Itoa(pids[0]))
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		pid := filepath.Base(p)
		if own == "" || ns(pid) != own {
			continue
		}
		b, _ := os.ReadFile(p + "/cmdline")
		if strings.HasPrefix(strings.ReplaceAll(string(b), "\x00", " "), words) {
			count++
		}
	}
	return count
}
