package e2b

import (
	"strings"
	"testing"
)

// TestHomeUnknown: a path from a home that cannot be asked for is an error to try again, and never one from the root; and what could
// not be read is not remembered.
func TestHomeUnknown(t *testing.T) {
	r := newRig(t)
	r.far.files["/etc/passwd"] = "root:x:0:0::/root:/bin/sh\n"
	set := func(down string, cut bool) {
		r.far.mu.Lock()
		defer r.far.mu.Unlock()
		r.far.down, r.far.cut = down, cut
	}
	const at = "/files?path=a&username=root"
	for _, cut := range []bool{false, true} {
		set("/etc/passwd", cut)
		if status, got := r.do(t, "POST", at, inside(t, "application/octet-stream"), "x"); status != 503 {
			t.Errorf("cut off %t: %d %s", cut, status, got)
		}
		if status, got := r.do(t, "GET", at, inside(t, ""), ""); status != 503 {
			t.Errorf("read, cut off %t: %d %s", cut, status, got)
		}
	}
	if b, there := r.far.files["/a"]; there {
		t.Errorf("it was written to /a: %q", b)
	}
	set("", false)
	if status, got := r.do(t, "POST", at, inside(t, "application/octet-stream"), "x"); status != 200 || r.far.files["/root/a"] != "x" {
		t.Errorf("afterwards: %d %s", status, got)
	}
}

// TestNoPasswd: a sandbox without users has paths from its root.
func TestNoPasswd(t *testing.T) {
	r := newRig(t)
	if status, got := r.do(t, "POST", "/files?path=a&username=root", inside(t, "application/octet-stream"), "x"); status != 200 || !strings.Contains(got, `"/a"`) {
		t.Errorf("%d %s", status, got)
	}
}
