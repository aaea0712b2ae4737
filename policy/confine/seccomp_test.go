package confine

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/opendsec/dsec/internal/linux"
)

// TestProgram installs the default filter in a child of the test and asks it for what must be refused and
// what must not.
func TestProgram(t *testing.T) {
	if os.Getenv("CONFINE_CHILD") != "" {
		child()
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=TestProgram")
	cmd.Env = append(os.Environ(), "CONFINE_CHILD=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	for _, want := range []string{
		"mount: operation not permitted", "bpf: operation not permitted", "clone3: function not implemented",
		"unshare: operation not permitted", "vsock: address family not supported by protocol", "unknown: function not implemented",
		"inet: ok", "tiocsti: operation not permitted", "getpid: ok", "swapext: operation not permitted", "personality: ok", "personality16: operation not permitted",
		"clone-newuser: operation not permitted",
	} {
		if !strings.Contains(string(out), want+"\n") {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
}

func child() {
	p, err := Program(Default())
	if err == nil {
		err = linux.InstallFilter(p)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	for _, c := range []struct {
		name string
		nr   uintptr
		a    [3]uintptr
	}{
		{"mount", 165, [3]uintptr{}}, {"bpf", 321, [3]uintptr{}}, {"clone3", 435, [3]uintptr{}}, {"unshare", 272, [3]uintptr{}},
		{"vsock", 41, [3]uintptr{40, 1, 0}}, {"inet", 41, [3]uintptr{2, 1, 0}}, {"unknown", 9999, [3]uintptr{}},
		{"tiocsti", 16, [3]uintptr{0, 0x5412, 0}}, {"getpid", 39, [3]uintptr{}}, {"swapext", 16, [3]uintptr{0, 0xc0c0586d, 0}},
		{"personality", 135, [3]uintptr{0xffffffff}}, {"personality16", 135, [3]uintptr{16}},
		{"clone-newuser", 56, [3]uintptr{0x10000000 | 17}},
	} {
		if err := linux.RawSyscall(c.nr, c.a[0], c.a[1], c.a[2]); err != nil {
			fmt.Printf("%s: %v\n", c.name, err)
		} else {
			fmt.Printf("%s: ok\n", c.name)
		}
	}
	os.Exit(0)
}

// TestUnknownCall: a rule for a call that the table has not is an error, for left out it would be allowed.
func TestUnknownCall(t *testing.T) {
	if b, err := Program([]Rule{{Call: "no_such_call", Errno: eperm}}); err == nil || !strings.Contains(err.Error(), "no_such_call") {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}
