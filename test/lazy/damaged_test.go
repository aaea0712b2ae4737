package lazy

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// flip turns bits over in files, one in each 200 kB.
func flip(t *testing.T, glob string) {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", glob, files, err)
	}
	for _, name := range files {
		if err := os.Chmod(name, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		for off := int64(1000); off < st.Size(); off += 200_000 {
			if _, err := f.ReadAt(b, off); err != nil {
				t.Fatal(err)
			}
			b[0] ^= 0x10
			if _, err := f.WriteAt(b, off); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// unread is a file that nothing reads before a test does.
const unread = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"

// sum is a command that reads it.
const sum = "md5sum <" + unread

// damage turns one bit over in the middle of the file in a data blob; head is how the file begins.
func damage(t *testing.T, glob, head string) {
	t.Helper()
	files, err := filepath.Glob(glob)
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: %v, %v", glob, files, err)
	}
	all, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(all, []byte(head))
	if at < 0 || len(head) != 4096 {
		t.Fatalf("%s does not hold the file", files[0])
	}
	at += 1 << 20
	f, err := os.OpenFile(files[0], os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{all[at] ^ 0x10}, int64(at)); err != nil {
		t.Fatal(err)
	}
}

// mended damages a file in a running node's store, and brings the base in again: verify finds the damage, and no more of it
// afterwards; a sandbox that runs goes on; new ones read what they should, which is what want says.
func (n *node) mended(id, data, head, want string) {
	n.t.Helper()
	n.credentials()
	n.must(id, "mkfifo /tmp/go")
	waits := make(chan string, 1)
	go func() {
		r, err := n.exec(id, "read line </tmp/go; echo $line")
		if err != nil {
			waits <- err.Error()
			return
		}
		waits <- string(r.GetStdout())
	}()
	damage(n.t, data, head)
	text, err := n.Run(n.t.Context(), "image", "verify", base)
	if err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "again") {
		n.t.Errorf("verify of what is damaged: %v\n%s", err, text)
	} else {
		n.t.Log(err)
	}
	if n.s3 != nil { // who reads on demand is never given it
		if kind, blame := n.ends(id, sum); kind != "store_fault" || blame != dsecv1.Blame_BLAME_INFRA {
			n.t.Errorf("what is damaged in the store ends as %s, %v", kind, blame)
		}
		eventually(n.t, "the damaged store is among the events", func() bool { return strings.Contains(n.events(id), "what=store_damaged") })
	}
	if r := n.bring(); !r.GetRepaired() {
		n.t.Errorf("brought in again: %v", r)
	}
	if text, err := n.Run(n.t.Context(), "image", "verify", base); err != nil {
		n.t.Errorf("verify of what is mended: %v\n%s", err, text)
	}
	if n.s3 != nil { // nothing is mounted again for it
		eventually(n.t, "the same sandbox reads what it could not", func() bool {
			r, err := n.exec(id, sum)
			return err == nil && string(r.GetStdout()) == want
		})
	}
	if got := n.must(n.create(), sum); got != want {
		n.t.Errorf("a new sandbox reads %q, want %q", got, want)
	}
	n.must(id, "echo on >/tmp/go")
	if got := <-waits; got != "on\n" {
		n.t.Errorf("a command that ran meanwhile: %q", got)
	}
}

// TestMendedInS3: the layer that a running node reads on demand is damaged in the bucket.
func TestMendedInS3(t *testing.T) {
	n := start(t)
	other := n.create()
	want, head := n.must(other, sum), n.must(other, "head -c 4096 "+unread)
	// Nothing of it stays on the node.
	if left, err := n.Stop(); err != nil || len(left) > 0 {
		t.Fatalf("stop: %v, left %q", err, left)
	}
	if err := os.RemoveAll(filepath.Join(n.state, "lazy")); err != nil {
		t.Fatal(err)
	}
	n.up()
	id := n.create()
	n.mended(id, filepath.Join(n.s3.Dir, bucket, "team", "layers", "*", "data"), head, want)
}

// TestMendedInFolder: the same in a folder that is mounted directly, where reads are not compared with digests.
func TestMendedInFolder(t *testing.T) {
	n, _ := prepare(t)
	n.begin()
	id, other := n.create(), n.create()
	want, head := n.must(other, sum), n.must(other, "head -c 4096 "+unread)
	n.mended(id, filepath.Join(n.state, "layers", "layers", "*", "data"), head, want)
}
