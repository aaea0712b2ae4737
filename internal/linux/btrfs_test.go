package linux

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// pool makes a small btrfs over a loop device, mounted nowhere, gone with the test.
func pool(t *testing.T) *os.File {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	img := filepath.Join(t.TempDir(), "pool.img")
	f, err := os.Create(img)
	if err != nil {
		t.Fatal(err)
	}
	if err := Allocate(f, 256<<20); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if out, err := exec.Command("mkfs.btrfs", "-q", img).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.btrfs: %v %s", err, out)
	}
	dev, err := LoopAttach(img)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoopAttach(img)
	if err != nil || again.Name() != dev.Name() {
		t.Fatalf("second attach: %v, want %s", again, dev.Name())
	}
	again.Close()
	m, err := NewMount("btrfs", NoDev, Option{Key: "source", Value: dev.Name()})
	dev.Close()
	if err != nil {
		t.Fatal(err)
	}
	root, err := OpenDirAt(m, ".") // the mount's own descriptor only names it: ioctls need an open one
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		root.Close()
		m.Close()
		for range 200 {
			if on, _ := LoopOver(img); !on {
				return
			}
			unix.Nanosleep(&unix.Timespec{Nsec: 1e7}, nil) // the kernel detaches it a moment later
		}
		t.Error("loop device is still attached after the mount went away")
	})
	return root
}

func TestSubvolumeQuota(t *testing.T) {
	m := pool(t)
	simple, err := QuotaEnable(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("simple quotas: %v", simple)
	if err := SubvolumeCreate(m, "a"); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDirAt(m, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	id, err := SubvolumeID(d)
	if err != nil || id < 256 {
		t.Fatalf("id %d, %v", id, err)
	}
	if err := QuotaLimit(m, id, 8<<20); err != nil {
		t.Fatal(err)
	}
	if err := WriteAt(d, "small", make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Openat(int(d.Fd()), "big", unix.O_WRONLY|unix.O_CREAT, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for i := 0; ; i++ {
		_, err = unix.Write(fd, buf)
		if err == nil {
			err = unix.Fdatasync(fd)
		}
		if err != nil || i > 20 {
			break
		}
	}
	unix.Close(fd)
	if !errors.Is(err, unix.EDQUOT) {
		t.Fatalf("write beyond the limit: %v, want EDQUOT", err)
	}
	uuid, err := BtrfsUUID(m)
	if err != nil {
		t.Fatal(err)
	}
	use, err := QuotaUsage(uuid, id)
	if err != nil || use < 1<<20 || use > 8<<20 {
		t.Fatalf("usage %d, %v", use, err)
	}
	if err := SubvolumeSnapshot(m, "snap", d, true); err != nil {
		t.Fatal(err)
	}
	// What a snapshot shares stays charged to the original: it needs room for what it writes anew.
	if err := QuotaLimit(m, id, 16<<20); err != nil {
		t.Fatal(err)
	}
	if err := WriteAt(d, "small", []byte("x"), 0o644); err != nil {
		t.Fatalf("write to the original after its snapshot: %v", err)
	}
	for _, n := range []string{"a", "snap"} {
		if err := SubvolumeDelete(m, n); err != nil {
			t.Fatal(err)
		}
	}
}
