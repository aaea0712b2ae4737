package microvm_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/backend/microvm/kernel"
	"github.com/opendsec/dsec/internal/debkernel"
	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// readyOf is what a sandbox's ready event says of it.
func readyOf(b *sandboxtest.Box, attribute string) string {
	for _, e := range b.Events(0) {
		if e.Type == "ready" {
			return e.Attributes[attribute]
		}
	}
	return ""
}

// TestKernelChanged: a node that takes another kernel than before boots that; machines that were put away and copies of those that
// run go on with the kernel in their memory.
func TestKernelChanged(t *testing.T) {
	slow(t)
	own := kernel.Newest(testkit.Cache())
	if own == nil {
		t.Skip("no own kernel was built: make kernel")
	}
	debian, err := debkernel.Fetch(t.Context(), &debkernel.Options{Cache: filepath.Join(testkit.Cache(), "kernel")})
	if err != nil {
		t.Fatal(err)
	}
	n := sandboxtest.Start(t, factory(t), sandboxtest.Keeping(time.Nanosecond))
	d := n.Backend.(*microvm.Driver)
	for _, c := range []struct{ from, to *debkernel.Release }{{debian, own}, {own, debian}} {
		d.UseKernel(c.from)
		b := n.Create(t, nil)
		b.WantShell("(sleep 1000 & echo $! > /root/pid); uname -r", c.from.Version+"\n")
		b.Pause()
		b.AwaitSaved()
		d.UseKernel(c.to)
		other := n.Create(t, nil)
		other.WantShell("uname -r", c.to.Version+"\n")
		b.WantShell("kill -0 $(cat /root/pid) && uname -r", c.from.Version+"\n")
		copied := fork(b, 1)[0]
		copied.WantShell("kill -0 $(cat /root/pid) && uname -r", c.from.Version+"\n")
		for box, want := range map[*sandboxtest.Box]string{b: c.from.Version, copied: c.from.Version, other: c.to.Version} {
			if got := readyOf(box, "kernel"); got != want {
				t.Errorf("its ready event names kernel %q, want %q", got, want)
			}
		}
	}
}

// probes says, line by line, what of the kernel's a program in a machine can use: "ok", or the number of the error.
const probes = `
sub try { my ($name, $call, @args) = @_; my $r = syscall($call, @args); print "$name ", ($r < 0 ? $! + 0 : "ok"), "\n" }
my $zeros = "\0" x 4096;
try("io_uring", 425, 4, $zeros);
try("userfaultfd", 323, 1);
try("keyctl", 250, 0, -3, 1);
try("memfd_secret", 447, 0);
try("modify_ldt", 154, 0, $zeros, 16);
try("process_vm_readv", 310, $$, 0, 0, 0, 0, 0);
my $elf = pack("C16vvVVVVVvvvvvv", 0x7f, 0x45, 0x4c, 0x46, 1, 1, 1, (0) x 9, 2, 3, 1, 0x08048054, 52, 0, 0, 52, 32, 1, 0, 0, 0)
	. pack("V8", 1, 0, 0x08048000, 0x08048000, 96, 96, 5, 4096) . "\xb8\1\0\0\0\xbb\x2a\0\0\0\xcd\x80";
my $f;
open($f, ">", "/root/32") and print $f $elf and close($f) and chmod(0755, "/root/32");
print "32 bits ", (system("/root/32") >> 8 == 42 ? "ok" : $? >> 8), "\n";
print "namespaces ", (system("unshare -Urmn sh -c 'mount -t tmpfs x /mnt && cd /mnt && mkdir l u w m &&
	mount -t overlay -o userxattr,lowerdir=l,upperdir=u,workdir=w x m'") >> 8 ? "refused" : "ok"), "\n";
for my $d (["fuse", 10, 229], ["net/tun", 10, 200], ["loop0", 7, 0]) {
	system("mknod /root/d \$(test $d->[1] = 7 && echo b || echo c) $d->[1] $d->[2]");
	print "$d->[0] ", (open(my $h, "+<", "/root/d") ? "ok" : "refused"), "\n";
	unlink("/root/d");
}
try("bpf", 321, 0, pack("L4", 2, 4, 4, 1) . $zeros, 72); # a map
`

// TestPrograms: programs in a machine can use the same of both kernels, and what docs/microvm.md says that none can use is refused.
func TestPrograms(t *testing.T) {
	slow(t)
	b := sandboxtest.Start(t, factory(t), nil).Create(t, nil)
	got := strings.Split(string(b.Shell("perl -e '"+strings.ReplaceAll(probes, "'", `'\''`)+"' 2>&1").Stdout), "\n")
	want := []string{"io_uring ok", "userfaultfd ok", "keyctl ok", "memfd_secret ok", "modify_ldt ok", "process_vm_readv ok", "32 bits ok", "namespaces ok",
		"fuse refused", "net/tun refused", "loop0 refused"}
	if len(got) != len(want)+2 || !slices.Equal(got[:len(want)], want) {
		t.Fatalf("%q, want %q", got, want)
	}
	if bpf := got[len(want)]; bpf != "bpf 1" && bpf != "bpf 38" { // not allowed, or not there
		t.Error(bpf)
	}
}
