package microvm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/sandbox"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// server is a program with all that is to go on in a copy: an open file that has no name any more, a timer, and a socket that
// listens.
const server = `use Socket; use IO::Select;
socket(my $l, PF_INET, SOCK_STREAM, 0) or die; bind($l, sockaddr_in(7777, INADDR_LOOPBACK)) or die; listen($l, 5) or die;
open(my $f, "+>", "/root/nameless") or die; unlink "/root/nameless"; syswrite($f, "held");
our $ticks = 0; $SIG{ALRM} = sub { $ticks++; alarm 1 }; alarm 1;
open(my $r, ">", "/root/up"); print $r "$$"; close $r;
while (1) { next unless accept(my $c, $l); sysseek($f, 0, 0); sysread($f, my $b, 9); syswrite($c, "$b $$ " . ($ticks > 0 ? "ticks" : "stands") . "\n"); close $c; }`

// ask is a command that talks to it, until its timer has gone off.
const ask = `for i in $(seq 100); do exec 3<>/dev/tcp/127.0.0.1/7777 || exit 1; read a b c <&3; [ "$c" = ticks ] && break; sleep 0.2; done; echo $a $c; [ $b = $(cat /root/up) ] && echo same`

func fork(b *sandboxtest.Box, n int32) (out []*sandboxtest.Box) {
	b.T.Helper()
	resp, err := b.N.Snapshots.ForkSandbox(b.Ctx, &dsecv1.ForkSandboxRequest{SandboxId: b.ID, Count: n})
	if err != nil {
		b.T.Fatal(err)
	}
	for _, r := range resp.Results {
		if r.Error != nil {
			b.T.Fatal(r.Error)
		}
		out = append(out, b.N.Box(b.T, r.Sandbox))
	}
	return out
}

// TestSnapshot: what ran goes on in copies, of a machine that was booted, of one that was ready, and of a copy; each copy is a
// machine of its own. A snapshot that was changed, or of another QEMU or processor, is refused, with the reason.
func TestSnapshot(t *testing.T) {
	slow(t)
	f, inet := netFactory(t, 1, "")
	n := sandboxtest.Start(t, f, nil)
	cold := n.Create(t, nil)
	wantBoot(t, cold, "cold")
	run := func(b *sandboxtest.Box) {
		t.Helper()
		b.WantShell("echo 0123456789abcdef0123456789abcdef > /etc/machine-id; perl -e '"+server+"' >/dev/null 2>&1 & "+
			"for i in $(seq 1000); do [ -s /root/up ] && break; sleep 0.1; done; echo up", "up\n")
	}
	run(cold)
	first := fork(cold, 1)[0]
	wantBoot(t, first, "snapshot")
	first.WantShell(`bash -c '`+ask+`'`, "held ticks\nsame\n")
	first.WantShell("uname -n; cat /etc/hostname", first.ID+"\n"+first.ID+"\n")
	first.Stop()
	cold.WantShell(`bash -c '`+ask+`'`, "held ticks\nsame\n")
	cold.Stop()

	awaitWarm(t, n.Backend, 1)
	warm := n.Create(t, inet.spec(inet.One.String()+"/tcp"))
	wantBoot(t, warm, "warm")
	run(warm)
	seen := map[string]string{}
	for _, b := range append(fork(warm, 2), warm) {
		b.WantShell(`bash -c '`+ask+`'`, "held ticks\nsame\n")
		out := strings.Fields(string(b.Shell("cat /proc/sys/kernel/random/uuid; od -An -N16 -tx8 /dev/urandom | tr -d ' '; cat /etc/machine-id /sys/class/net/eth0/address; uname -n; hostname -I | cut -d' ' -f1").Stdout))
		if len(out) != 6 {
			t.Fatalf("%q", out)
		}
		for _, v := range out {
			if other := seen[v]; other != "" {
				t.Errorf("%s and %s have both %s", b.ID, other, v)
			}
			seen[v] = b.ID
		}
		b.WantShell(inet.reach(inet.One)+"; "+inet.reach(inet.Other)+"; "+inet.reach(inet.One), "reached\nnot reached\nreached\n")
		if b != warm {
			grand := fork(b, 1)[0]
			grand.WantShell(`bash -c '`+ask+`'; uname -n`, "held ticks\nsame\n"+grand.ID+"\n")
			grand.Stop()
			b.Stop()
		}
	}

	warm.WantShell("echo packed > /root/packed; rm /etc/issue", "")
	resp, err := n.Snapshots.CreateSnapshot(warm.Ctx, &dsecv1.CreateSnapshotRequest{SandboxId: warm.ID})
	if err != nil {
		t.Fatal(err)
	}
	id := sandbox.SnapshotID(resp.Snapshot.Id)
	upper, err := n.Backend.(sandbox.Snapshotter).OpenSnapshot(id)
	if err != nil {
		t.Fatal(err)
	}
	defer upper.Close()
	if b, err := os.ReadFile(filepath.Join(upper.Name(), "root/packed")); err != nil || string(b) != "packed\n" {
		t.Errorf("what it wrote: %q, %v", b, err)
	}
	if st, err := os.Stat(filepath.Join(upper.Name(), "etc/issue")); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("what it removed: %v, %v", st, err)
	}
	refused(t, n, id, nil)
	if _, err := n.Snapshots.DeleteSnapshot(warm.Ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: string(id)}); err != nil {
		t.Fatal(err)
	}
	if left, err := n.Backend.(sandbox.Snapshotter).Snapshots(); err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// refused looks that a snapshot which is not as it was taken, or does not fit, makes no machine.
func refused(t *testing.T, n *sandboxtest.Node, id sandbox.SnapshotID, limits *dsecv1.Limits) {
	d := n.Backend.(*microvm.Driver)
	dir := d.SnapshotDir(id)
	restore := func() (code, text string) {
		d.ForgetVerified(id)
		resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), &dsecv1.CreateResolvedRequest{Create: &dsecv1.CreateSandboxRequest{
			Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Snapshot: string(id)}, Limits: limits}}, KeyId: "test"})
		if err != nil {
			return connect.CodeOf(err).String(), err.Error()
		}
		if e := resp.Response.Results[0].Error; e != nil {
			return e.Code, e.Message
		}
		n.Box(t, resp.Response.Results[0].Sandbox).Stop()
		return "", ""
	}
	for _, c := range []struct {
		file   string
		change func([]byte) []byte
		want   string
	}{
		{"ram", flip(5000), "its memory or its disk"},
		{"disk.raw", flip(1200), "its memory or its disk"},
		{"state", flip(3000), "its state is another"},
		{"ram", func(b []byte) []byte { return b[:len(b)-4096] }, "damaged"},
		{"template.json", func(b []byte) []byte { return b[:20] }, "its note"},
		{"template.json", note(t, "qemu", "QEMU emulator version 1.0"), `taken by "QEMU emulator version 1.0"`},
		{"template.json", note(t, "processor", "AAAA"), "another model of processor"},
		{"template.json", note(t, "version", 99), "version 99"},
	} {
		path := filepath.Join(dir, c.file)
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		put := func(b []byte) {
			if err := os.WriteFile(path+".x", b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".x", path); err != nil {
				t.Fatal(err)
			}
		}
		put(c.change(append([]byte(nil), was...)))
		if code, text := restore(); code != "failed_precondition" || !strings.Contains(text, c.want) {
			t.Errorf("%s changed: %s, %s, want %q", c.file, code, text, c.want)
		}
		put(was)
	}
	limits = &dsecv1.Limits{MemoryBytes: 300 << 20}
	if code, text := restore(); code != "invalid_argument" || !strings.Contains(text, "the size that it had") {
		t.Errorf("with more memory: %s, %s", code, text)
	}
	limits = nil
	if code, text := restore(); code != "" {
		t.Errorf("as it was taken: %s, %s", code, text)
	}
}

func flip(at int) func([]byte) []byte { return func(b []byte) []byte { b[at] ^= 1; return b } }

func note(t *testing.T, field string, value any) func([]byte) []byte {
	return func(b []byte) []byte {
		m := map[string]any{}
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		m[field] = value
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
}
