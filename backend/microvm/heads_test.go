package microvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// storedLayer is a layer of two files with those contents.
func storedLayer(t *testing.T, meta, data []byte) *layer.Local {
	t.Helper()
	dir := t.TempDir()
	l := &layer.Local{Digest: layer.Digest(fmt.Sprintf("b3:%064x", len(data))), MetaPath: filepath.Join(dir, "meta"), DataPath: filepath.Join(dir, "data")}
	l.Manifest.Meta.Size, l.Manifest.Data.Size = int64(len(meta)), int64(len(data))
	if err := errors.Join(os.WriteFile(l.MetaPath, meta, 0o400), os.WriteFile(l.DataPath, data, 0o400)); err != nil {
		t.Fatal(err)
	}
	return l
}

// TestHead: of whatever size a layer is, regions are multiples of 2 MiB, and have all of it.
func TestHead(t *testing.T) {
	d := &Driver{cfg: Config{StateDir: t.TempDir(), LayersAs: LayersMemory}}
	for _, size := range []int{0, 4096, memoryUnit - 4096, memoryUnit, memoryUnit + 4096, 3 * memoryUnit} {
		meta, data := bytes.Repeat([]byte("meta"), 5000), bytes.Repeat([]byte("data"), size/4)
		l := layerFiles{local: storedLayer(t, meta, data)}
		if err := d.mapLayer(t.Context(), &l); err != nil {
			t.Fatal(err)
		}
		f := l.memory
		for _, n := range []int64{f.image, f.tail, f.body} {
			if n%memoryUnit != 0 {
				t.Errorf("%d bytes: a region of %d", size, n)
			}
		}
		head, err := os.ReadFile(f.head)
		if err != nil || int64(len(head)) != f.image+f.tail {
			t.Fatalf("%d bytes: a head of %d, %v", size, len(head), err)
		}
		got := slices.Concat(data[:f.body], head[f.image:])
		if !bytes.HasPrefix(head, meta) || !bytes.HasPrefix(got, data) || len(bytes.Trim(got[len(data):], "\x00")) > 0 {
			t.Errorf("%d bytes: the parts are not the whole", size)
		}
	}
}

// TestUnmappable: what a kernel would take for the description of something else, or cannot be had at once, stays a disk; where it must
// not, that is refused, with the reason.
func TestUnmappable(t *testing.T) {
	plain := func() *layer.Local { return storedLayer(t, make([]byte, 8192), make([]byte, memoryUnit+8192)) }
	at := func(off int, what string) *layer.Local {
		data := make([]byte, memoryUnit)
		copy(data[off:], what)
		return storedLayer(t, make([]byte, 8192), data)
	}
	lazy := plain()
	lazy.Readahead = 1 << 20
	device := plain()
	device.DataPath = os.DevNull
	for name, c := range map[string]struct {
		l    *layer.Local
		want string
	}{
		"plain": {plain(), ""}, "lazy": {lazy, "on demand"}, "a device": {device, "no plain file"},
		"pfn": {at(4096, "NVDIMM_PFN_INFO"), "something else"}, "dax": {at(4096, "NVDIMM_DAX_INFO"), "something else"},
		"btt": {at(4096, "BTT_ARENA_INFO"), "something else"}, "btt at once": {at(0, "BTT_ARENA_INFO"), "something else"},
		"further in": {at(8192, "NVDIMM_PFN_INFO"), ""},
	} {
		for _, how := range []string{LayersMemory, LayersAuto} {
			d := &Driver{cfg: Config{StateDir: t.TempDir(), LayersAs: how}}
			m := &hardware{memory: 256 << 20, layers: []layerFiles{{local: plain()}, {local: c.l}}}
			got, err := d.mapLayers(t.Context(), m)
			switch {
			case c.want == "":
				if err != nil || got != "pmem" || m.layers[1].memory == nil || m.memory <= 256<<20 {
					t.Errorf("%s, %s: %q, %v", name, how, got, err)
				}
			case how == LayersMemory:
				if !errors.Is(err, sandbox.ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want %q", name, err, c.want)
				}
			case err != nil || !strings.HasPrefix(got, "pmem; ") || !strings.Contains(got, c.want) || m.layers[0].memory == nil || m.layers[1].memory != nil:
				t.Errorf("%s, %s: %q, %v", name, how, got, err)
			}
		}
	}
}

// TestMapAgain: a machine that was saved goes on with the same layers as memory, or not at all.
func TestMapAgain(t *testing.T) {
	d := &Driver{cfg: Config{StateDir: t.TempDir()}}
	lazy := storedLayer(t, make([]byte, 8192), make([]byte, 8192))
	lazy.Readahead = 1
	for _, c := range []struct {
		layers []layerFiles
		flags  []bool
		want   error
	}{
		{[]layerFiles{{local: lazy}}, nil, nil},
		{[]layerFiles{{local: lazy}}, []bool{false}, nil},
		{[]layerFiles{{local: lazy}}, []bool{true}, sandbox.ErrFailedPrecondition},
		{[]layerFiles{{local: lazy}}, []bool{false, true}, sandbox.ErrFailedPrecondition},
	} {
		if err := d.mapAgain(t.Context(), c.layers, c.flags); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.flags, err, c.want)
		}
	}
}

// TestMemoryArguments: machines with layers as memory know them by their places on the bus.
func TestMemoryArguments(t *testing.T) {
	h := &hardware{cpus: 1, memory: 256 << 20, layers: []layerFiles{
		{meta: "/m0", data: "/d0", memory: &memoryFiles{head: "/h0", image: memoryUnit, tail: memoryUnit, body: 4 * memoryUnit}},
		{meta: "/m1", data: "/d1"}}}
	got := strings.Join(h.args(), " ")
	for _, want := range []string{
		"-M q35,memory-backend=ram,", " -m 256M,slots=1,maxmem=270M ",
		`"id":"head0","mem-path":"/h0","qom-type":"memory-backend-file","readonly":true,"share":true,"size":4194304} -device virtio-pmem-pci,memdev=head0,bus=pcie.0,multifunction=on,addr=0x4.0`,
		`"id":"body0","mem-path":"/d0","qom-type":"memory-backend-file","readonly":true,"share":true,"size":8388608} -device virtio-pmem-pci,memdev=body0,bus=pcie.0,multifunction=on,addr=0x4.1`,
		"-device virtio-blk-pci,drive=m1,serial=m1,bus=pcie.0,multifunction=on,addr=0x4.2", "-device virtio-blk-pci,drive=d1,serial=d1,bus=pcie.0,multifunction=on,addr=0x4.3",
		" -- machine memory ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("arguments\n%s\nwithout %s", got, want)
		}
	}
	told := refs(h.layers)
	if m := told[0].Memory; m == nil || m.Head != "0000:00:04.0" || m.Body != "0000:00:04.1" || told[1].Memory != nil || told[1].Meta != "m1" {
		t.Errorf("the machine is told %+v", told)
	}
}

// TestUnfinishedHead: what a killed edge had begun of a head is removed by the next one; heads stay.
func TestUnfinishedHead(t *testing.T) {
	d, err := New(t.Context(), Config{StateDir: t.TempDir(), LayersAs: LayersMemory})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	l := layerFiles{local: storedLayer(t, make([]byte, 4096), nil)}
	if err := d.mapLayer(t.Context(), &l); err != nil {
		t.Fatal(err)
	}
	begun := filepath.Join(filepath.Dir(l.memory.head), strings.Repeat("ab", 32)+newSuffix)
	if err := os.WriteFile(begun, make([]byte, 4096), 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Sweep(t.Context(), func(sandbox.ID) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if exists(begun) || !exists(l.memory.head) {
		t.Errorf("after a sweep: begun %v, whole %v", exists(begun), exists(l.memory.head))
	}
}

// TestBusError: a QEMU that is ended by a page that a file does not give is the store's fault where layers are its memory, and a
// crash else.
func TestBusError(t *testing.T) {
	for _, c := range []struct {
		mapped []bool
		signal syscall.Signal
		want   sandbox.Kind
	}{
		{[]bool{true}, syscall.SIGBUS, sandbox.KindStoreFault}, {nil, syscall.SIGBUS, sandbox.KindVMMCrashed},
		{[]bool{true}, syscall.SIGKILL, sandbox.KindVMMCrashed},
	} {
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p, err := linux.OpenPID(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		_ = cmd.Process.Signal(c.signal)
		_ = cmd.Wait()
		if _, err := linux.ExitStatus(p); err != nil {
			t.Skipf("this kernel does not tell how processes ended: %v", err)
		}
		i := &instance{limits: record{Mapped: c.mapped}}
		if got := i.crash(p); got.Kind != c.want {
			t.Errorf("%v, %v: %v", c.mapped, c.signal, got)
		}
	}
}

// TestLacksForMemory: a kernel that lacks one of what it takes is told of before a machine waits for regions that never come.
func TestLacksForMemory(t *testing.T) {
	const all = "\nCONFIG_ZONE_DEVICE=y\nCONFIG_FS_DAX=y\nCONFIG_LIBNVDIMM=y\nCONFIG_ND_CLAIM=y\nCONFIG_VIRTIO_PMEM=m\nCONFIG_BLK_DEV_PMEM=m\nCONFIG_BLK_DEV_DM=m\nCONFIG_VIRTIO_PCI=y\n"
	r := &debkernel.Release{Dir: t.TempDir(), Version: "6.12.1", Own: true}
	if got := LacksForMemory(r); got != "its configuration" {
		t.Errorf("without a configuration: %q", got)
	}
	path := filepath.Join(r.Dir, "boot", "config-6.12.1")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for without, want := range map[string]string{"": "", "CONFIG_ND_CLAIM=y\n": "CONFIG_ND_CLAIM", "CONFIG_FS_DAX=y\n": "CONFIG_FS_DAX"} {
		if err := os.WriteFile(path, []byte(strings.Replace(all, without, "", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := LacksForMemory(r); got != want {
			t.Errorf("without %q: %q", without, got)
		}
	}
}
