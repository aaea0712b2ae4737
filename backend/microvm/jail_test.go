package microvm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opendsec/dsec/backend/microvm"
)

// wantJailed looks at a machine's QEMU from outside, as the kernel tells: who takes it over is nobody, without privileges, in an
// empty root, alone, and holds no files but its machine's own, its layers read-only.
func wantJailed(t *testing.T, state, id string) {
	t.Helper()
	dir := filepath.Join(state, "run/vm", id)
	b, err := os.ReadFile(dir + "/record.json")
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	proc := fmt.Sprintf("/proc/%d/", r.PID)
	tasks, err := filepath.Glob(proc + "task/*/status")
	if err != nil || len(tasks) < 2 {
		t.Fatalf("threads %q, %v", tasks, err)
	}
	nobody := fmt.Sprint(microvm.VMMUser)
	want := map[string]string{"Uid": strings.Repeat(nobody+" ", 4), "Gid": strings.Repeat(nobody+" ", 4), "Groups": nobody, "NoNewPrivs": "1", "Seccomp": "2",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapAmb": "0000000000000000"}
	for _, task := range tasks {
		b, err := os.ReadFile(task)
		if os.IsNotExist(err) {
			continue // one of those that come and go
		}
		if err != nil {
			t.Fatal(err)
		}
		found := 0
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(line, ":")
			w, ok := want[k]
			if !ok {
				continue
			}
			found++
			if got := strings.Join(strings.Fields(v), " "); got != strings.TrimSpace(w) {
				t.Errorf("%s: %s is %s, want %s", task, k, got, w)
			}
		}
		if found != len(want) {
			t.Errorf("%s tells %d of %d", task, found, len(want))
		}
	}
	root, err := os.ReadDir(proc + "root/")
	if err != nil || len(root) > 0 {
		t.Errorf("its root has %v, %v", root, err)
	}
	if cwd, _ := os.Readlink(proc + "cwd"); cwd != filepath.Join(state, "run/vm-jail") {
		t.Errorf("it is in %s", cwd)
	}
	for _, ns := range []string{"pid", "net", "ipc", "uts"} {
		own, err1 := os.Readlink(proc + "ns/" + ns)
		node, err2 := os.Readlink("/proc/self/ns/" + ns)
		if err1 != nil || err2 != nil || own == node {
			t.Errorf("%s namespace %s, the node's %s: %v, %v", ns, own, node, err1, err2)
		}
	}
	if b, err := os.ReadFile(proc + "net/dev"); err != nil || strings.Count(string(b), ":") != 1 {
		t.Errorf("its interfaces: %s, %v", b, err)
	}
	files, err := os.ReadDir(proc + "fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		to, err := os.Readlink(proc + "fd/" + f.Name())
		if err != nil || !strings.HasPrefix(to, "/") {
			continue // a socket, a pipe, an event
		}
		info, err := os.ReadFile(proc + "fdinfo/" + f.Name())
		if err != nil {
			continue
		}
		readOnly := strings.Contains(string(info), "\nflags:\t0") && strings.HasSuffix(strings.Fields(string(info))[3], "0")
		switch {
		case strings.HasPrefix(to, dir+"/"), strings.HasPrefix(to, "/dev/null"), to == "/dev/kvm", to == "/dev/net/tun", readOnly,
			strings.HasSuffix(to, "/ram"): // its template's, which it maps privately
		default:
			t.Errorf("it holds %s:\n%s", to, info)
		}
		if strings.Contains(to, "/run/vm/") && !strings.HasPrefix(to, dir+"/") {
			t.Errorf("it holds another machine's %s", to)
		}
	}
}
