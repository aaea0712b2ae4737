package microvm_test

import (
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestManyLayers: layers for whose disks a machine has no place of their own are behind a controller; copies find them there.
func TestManyLayers(t *testing.T) {
	slow(t)
	f := factory(t)
	one := f.Layers[0]
	f.Layers = nil
	for range 13 {
		f.Layers = append(f.Layers, &dsecv1.ResolvedLayer{Digest: one.Digest, Kind: one.Kind, Name: one.Name, Version: one.Version})
	}
	n := sandboxtest.Start(t, f, nil)
	b := n.Create(t, nil)
	b.WantShell("echo x > /root/x; cat /etc/hostname", b.ID+"\n")
	if out := string(b.Shell("ls /sys/block").Stdout); strings.Count(out, "sd") != 2*13 {
		t.Errorf("disks %q", out)
	}
	c := fork(b, 1)[0]
	b.Stop()
	c.WantShell("cat /root/x /etc/hostname; ls /usr/bin/env", "x\n"+c.ID+"\n/usr/bin/env\n")
}
