package test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/testkit"
)

// ended tells whether a process has ended; nobody may have asked how yet.
func ended(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || bytes.Contains(b, []byte(") Z "))
}

// leftNothing checks that the sandboxes' dsec-inits are gone, and all else that the node had on the machine.
func (n *node) leftNothing(t *testing.T, inits map[string][]int, dirs ...string) {
	t.Helper()
	for id, pids := range inits {
		for _, pid := range pids {
			if !ended(pid) {
				t.Errorf("dsec-init of %s (process %d) still runs", id, pid)
			}
		}
	}
	if left, err := testkit.Leftovers(n.state, dirs...); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// memory is where the shells' records lie; it goes with the last of them.
func (n *node) memory(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(filepath.Join(n.state, "run", "shells"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// inits are the dsec-inits of sandboxes.
func (n *node) inits(t *testing.T, ids []string) map[string][]int {
	t.Helper()
	out := map[string][]int{}
	for _, id := range ids {
		pids, err := n.initPIDs(id)
		if err != nil {
			t.Fatal(err)
		}
		out[id] = pids
	}
	return out
}

// TestDownWithoutAKey: a node whose last key was revoked makes a new one for its owner, and ends whole.
func TestDownWithoutAKey(t *testing.T) {
	n := startNode(t)
	ids := n.create(2, nil)
	inits, memory := n.inits(t, ids), n.memory(t)
	keys, err := n.Client.Keys.ListKeys(t.Context(), &dsecv1.ListKeysRequest{})
	if err != nil || len(keys.GetKeys()) != 1 {
		t.Fatalf("keys: %v, %v", keys, err)
	}
	if _, err := n.Client.Keys.RevokeKey(t.Context(), &dsecv1.RevokeKeyRequest{Id: keys.GetKeys()[0].GetId()}); err != nil {
		t.Fatal(err)
	}
	if code, out, errs := n.cli(nil, "key", "create", "--state", n.state); code != 0 || !strings.HasPrefix(out, "dsec_") {
		t.Errorf("key create: exit %d: %s%s", code, out, errs)
	}
	code, out, errs := n.cli(nil, "down", "--state", n.state)
	if code != 0 || !strings.Contains(out, "sandboxes: 2 stopped") {
		t.Errorf("down: exit %d: %s%s", code, out, errs)
	}
	n.leftNothing(t, inits, memory)
}

// TestDownAfterKeeping: down ends sandboxes that an earlier one left, whatever the node's own processes have become, and
// says so where it must not.
func TestDownAfterKeeping(t *testing.T) {
	n := startNode(t)
	ids := n.create(2, nil)
	inits, memory := n.inits(t, ids), n.memory(t)
	if code, out, errs := n.cli(nil, "down", "--state", n.state, "--keep-sandboxes"); code != 0 {
		t.Fatalf("down: exit %d: %s%s", code, out, errs)
	}
	for _, id := range ids {
		if ended(inits[id][0]) {
			t.Errorf("sandbox %s was not kept", id)
		}
	}
	// hold, which is all that is left of the node, goes too.
	if code, out, errs := n.cli(nil, "down", "--state", n.state, "--force"); code != 1 || !strings.Contains(out, "without --force ends them") {
		t.Errorf("down --force: exit %d: %s%s", code, out, errs)
	}
	code, out, errs := n.cli(nil, "down", "--state", n.state)
	if code != 0 || !strings.Contains(out, "sandboxes: 2 stopped") {
		t.Errorf("down: exit %d: %s%s", code, out, errs)
	}
	n.leftNothing(t, inits, memory)
}

// TestStatusShowsWhatIs: after the supervisor's death, and on a disk without room, status shows the processes that run.
func TestStatusShowsWhatIs(t *testing.T) {
	disk := smallDisk(t, 1900<<20)
	n := startNodeAt(t, filepath.Join(disk, "s"), "--opt", "pool=300m")
	hold := n.processes()["hold"]
	up := n.processes()["up"]
	n.kill9(up)
	eventually(t, "the supervisor ends", func() bool { return ended(up) })
	n.up()
	if got := n.processes()["hold"]; got != hold || ended(hold) {
		t.Errorf("hold is shown as process %d, want %d", got, hold)
	}
	free := fill(t, disk)
	defer free()
	edge := n.processes()["edge"]
	n.kill9(edge)
	var out string
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, out, _ = n.cli(nil, "status", "--state", n.state)
		if pid := n.processes()["edge"]; pid != 0 && pid != edge && strings.Contains(out, "signal 9") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the edge's end is not shown: %s", out)
		}
	}
}
