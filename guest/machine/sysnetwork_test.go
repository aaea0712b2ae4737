package machine

import (
	"os"
	"path/filepath"
	"testing"
)

// TestVirtioInterface: the machine's interface is known by its driver, whatever it is called, and whatever has its address too.
func TestVirtioInterface(t *testing.T) {
	dir := t.TempDir()
	if index, err := virtioInterface(dir); err == nil {
		t.Errorf("interface %d of none", index)
	}
	for name, about := range map[string][2]string{"br0": {"5", ""}, "dummy0": {"4", "dummy"}, "ens3": {"2", "virtio_net"}, "lo": {"1", ""}} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(at, "device"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{"ifindex": about[0], "address": "02:d5:ec:00:3c:00"} {
			if err := os.WriteFile(filepath.Join(at, file), []byte(content+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if about[1] != "" {
			if err := os.Symlink("../../bus/drivers/"+about[1], filepath.Join(at, "device", "driver")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if index, err := virtioInterface(dir); err != nil || index != 2 {
		t.Errorf("interface %d, %v; want 2", index, err)
	}
}
