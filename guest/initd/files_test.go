package initd_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/testkit/patience"
)

func (b *box) write(o wire.OpenWrite, data string) error {
	w, err := b.c.OpenWrite(b.ctx, &o)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := io.WriteString(w, data); err != nil {
		return err
	}
	return w.Commit(b.ctx)
}

func (b *box) read(path, user string) (string, error) {
	r, _, err := b.c.OpenRead(b.ctx, path, user, 0, -1)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	return string(data), err
}

func TestWriteAndRead(t *testing.T) {
	b := newBox(t, &wire.Claim{Workdir: "/srv"})
	b.sh("mkdir -p /srv/d; ln -s /srv/d/target /srv/link; echo old > /srv/d/target; chmod 600 /srv/d/target; mkdir -m 777 /srv/open; echo 'alice:x:1234:1235::/tmp:/bin/sh' >> /etc/passwd")
	for _, c := range []struct {
		o    wire.OpenWrite
		stat string
	}{
		{wire.OpenWrite{Path: "/srv/a"}, "644 0 0 regular file"},
		{wire.OpenWrite{Path: "rel", Mode: 0o4750}, "4750 0 0 regular file"},
		{wire.OpenWrite{Path: "/srv/x/y/z", Parents: true}, "644 0 0 regular file"},
		{wire.OpenWrite{Path: "/srv/link"}, "777 0 0 symbolic link"},
		{wire.OpenWrite{Path: "/srv/d/target"}, "600 0 0 regular file"},
		{wire.OpenWrite{Path: "/srv/open/f", User: "alice"}, "644 1234 1235 regular file"},
		{wire.OpenWrite{Path: "/srv/owned", Owner: "alice:9"}, "644 1234 9 regular file"},
	} {
		text := c.o.Path + strings.Repeat(" text", 100)
		if err := b.write(c.o, text); err != nil {
			t.Errorf("%+v: %v", c.o, err)
			continue
		}
		path := c.o.Path
		if path[0] != '/' {
			path = "/srv/" + path
		}
		if got, err := b.read(path, ""); got != text || err != nil {
			t.Errorf("%s: %q %v", path, got, err)
		}
		if got := strings.TrimSpace(b.sh("stat -c '%a %u %g %F' " + path)); got != c.stat {
			t.Errorf("%s: %s, want %s", path, got, c.stat)
		}
	}
	r, info, err := b.c.OpenRead(b.ctx, "/srv/a", "", 2, 3)
	if err != nil || info.Size != 506 {
		t.Fatal(info, err)
	}
	if part, err := io.ReadAll(r); string(part) != "rv/" || err != nil {
		t.Errorf("%q %v", part, err)
	}
	// Abandoned: nothing is left.
	w, err := b.c.OpenWrite(b.ctx, &wire.OpenWrite{Path: "/srv/never"})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "half")
	w.Close()
	b.eventually("ls -A /srv | grep -E 'never|dsec-' | wc -l", "0\n")
}

// eventually repeats a command until it prints what is wanted.
func (b *box) eventually(script, want string) {
	b.t.Helper()
	for {
		got := b.sh(script)
		if got == want {
			return
		}
		if b.ctx.Err() != nil {
			b.t.Fatalf("%s: %q, want %q", script, got, want)
		}
	}
}

func TestFileRefusals(t *testing.T) {
	b := newBox(t, nil)
	b.sh(`mkdir /t; cd /t; mkfifo fifo; ln -s loop loop; ln -s /proc/self/mem mem; ln -s /proc/self/fd/2 magic; ln -s /proc/1/root root
		mkdir -m 700 private; echo secret > private/s; echo x > file; mkdir full; touch full/x; ln -s fifo tofifo; ln -s /dev/tty tty; mkdir -m 755 ro`)
	read := func(path, user string, want wire.Code) {
		t.Helper()
		_, err := b.read(path, user)
		if code(err) != want {
			t.Errorf("read %s: %v, want code %d", path, err, want)
		}
	}
	read("/t/fifo", "", wire.CodeInvalid)
	read("/t/tofifo", "", wire.CodeInvalid)
	read("/t/tty", "", wire.CodeInvalid)
	read("/dev/zero", "", wire.CodeInvalid)
	read("/t/loop", "", wire.CodeInvalid)
	read("/t/mem", "", wire.CodeInvalid)
	read("/t/magic", "", wire.CodeInvalid)
	read("/t/root/t/file", "", wire.CodeInvalid)
	read("/proc/1/environ", "", wire.CodeInvalid)
	read("/proc/self/maps", "", wire.CodeInvalid)
	read("/t", "", wire.CodeIsDirectory)
	read("/t/none", "", wire.CodeNotFound)
	read("/t/file/x", "", wire.CodeNotDirectory)
	read("/t/private/s", "nobody", wire.CodePermission)
	read("/t/file", "no-such-user", wire.CodeNoUser)
	read("", "", wire.CodeInvalid)
	read("/t/\x00", "", wire.CodeInvalid)
	read(strings.Repeat("x/", 2048), "", wire.CodeInvalid)
	write := func(path, user string, want wire.Code) {
		t.Helper()
		if err := b.write(wire.OpenWrite{Path: path, User: user}, "x"); code(err) != want {
			t.Errorf("write %s: %v, want code %d", path, err, want)
		}
	}
	write("/t/fifo", "", wire.CodeInvalid)
	write("/t/loop", "", wire.CodeInvalid)
	write("/t/magic", "", wire.CodeInvalid)
	write("/t/ro/x", "nobody", wire.CodePermission)
	write("/t/file", "nobody", wire.CodePermission)
	write("/t/none/x", "", wire.CodeNotFound)
	write("/t", "", wire.CodeIsDirectory)
	write("/proc/sys/kernel/hostname", "", wire.CodePermission)
	write("/t/..", "", wire.CodeInvalid)
	b.wantCode(b.write(wire.OpenWrite{Path: "/t/o", Owner: "no-such"}, "x"), wire.CodeNoUser)
	b.wantCode(b.c.Mkdir(b.ctx, "/t/file", "", false, 0), wire.CodeExists)
	b.wantCode(b.c.Mkdir(b.ctx, "/t/a/b", "", false, 0), wire.CodeNotFound)
	b.wantCode(b.c.Remove(b.ctx, "/t/full", "", false, false), wire.CodeNotEmpty)
	b.wantCode(b.c.Remove(b.ctx, "/t/none", "", false, false), wire.CodeNotFound)
	b.wantCode(b.c.Rename(b.ctx, "/t/none", "/t/other", ""), wire.CodeNotFound)
	_, _, err := b.c.ListDir(b.ctx, "/proc/self/fd", "", 1, 10, false)
	b.wantCode(err, wire.CodeInvalid)
}

func TestDirectories(t *testing.T) {
	b := newBox(t, nil)
	for _, err := range []error{
		b.c.Mkdir(b.ctx, "/d/e/f", "", true, 0o700),
		b.c.Mkdir(b.ctx, "/d/e/f", "", true, 0o700),
		b.write(wire.OpenWrite{Path: "/d/e/x"}, "abc"),
		b.c.Rename(b.ctx, "/d/e/x", "/d/y", ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	b.sh("ln -s y /d/l; mkdir -p /d/deep/er/est; touch $'/d/bad\\xff'")
	l, truncated, err := b.c.ListDir(b.ctx, "/d", "", 2, 100, false)
	if err != nil || truncated {
		t.Fatal(err, truncated)
	}
	got := make(map[string]string)
	for _, f := range l {
		got[f.Path] = fmt.Sprintf("%o %d %s", f.Mode, f.UID, f.Target)
	}
	for path, want := range map[string]string{
		"e": "40755 0 ", "e/f": "40700 0 ", "y": "100644 0 ", "l": "120777 0 y", "deep/er": "40755 0 ", "bad\xff": "100644 0 ",
	} {
		if got[path] != want {
			t.Errorf("%q: %q, want %q", path, got[path], want)
		}
	}
	if _, ok := got["deep/er/est"]; ok || len(got) != 7 {
		t.Errorf("%v", got)
	}
	if l, truncated, err = b.c.ListDir(b.ctx, "/d", "", 9, 3, false); len(l) != 3 || !truncated || err != nil {
		t.Errorf("%v %v %v", l, truncated, err)
	}
	f, err := b.c.Stat(b.ctx, "/d/l", "", false, false)
	if err != nil || f.Target != "y" {
		t.Errorf("%+v %v", f, err)
	}
	if f, err = b.c.Stat(b.ctx, "/d/l", "", true, false); err != nil || f.Size != 3 || f.MtimeNS == 0 {
		t.Errorf("%+v %v", f, err)
	}
	if err := b.c.Remove(b.ctx, "/d", "", true, false); err != nil {
		t.Error(err)
	}
	if err := b.c.Remove(b.ctx, "/d", "", true, true); err != nil {
		t.Error(err)
	}
	b.sh("test ! -e /d")
}

// pattern is an endless stream of bytes that differ.
type pattern struct{ n byte }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = p.n
		p.n = p.n*13 + 7
	}
	return len(b), nil
}

func TestLargeTransfers(t *testing.T) {
	b := newBox(t, nil)
	size := int64(200<<20) / int64(patience.Factor())
	began := time.Now()
	w, err := b.c.OpenWrite(b.ctx, &wire.OpenWrite{Path: "/big"})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(struct{ io.Writer }{w}, io.TeeReader(io.LimitReader(&pattern{}, size), sum))
		done <- err
	}()
	// Commands go on meanwhile.
	commands := 0
	for running := true; running; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running = false
		default:
			b.sh("true")
			commands++
		}
	}
	if err := w.Commit(b.ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("wrote %d MiB in %v with %d commands beside it", size>>20, time.Since(began), commands)
	began = time.Now()
	r, info, err := b.c.OpenRead(b.ctx, "/big", "", 0, -1)
	if err != nil || info.Size != size {
		t.Fatal(info, err)
	}
	back := sha256.New()
	if n, err := io.Copy(back, r); n != size || err != nil {
		t.Fatal(n, err)
	}
	if !bytes.Equal(sum.Sum(nil), back.Sum(nil)) {
		t.Error("other bytes came back")
	}
	t.Logf("read it in %v", time.Since(began))
	// A reader that stops in the middle holds nothing up.
	r, _, err = b.c.OpenRead(b.ctx, "/big", "", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	io.ReadFull(r, make([]byte, 1000))
	b.sh("rm /big")
	r.Close()
	if m := b.Memory(t); m.Anonymous > 8<<20 {
		t.Errorf("%+v after the transfers", m)
	}
}

func TestArchives(t *testing.T) {
	b := newBox(t, nil)
	long := strings.Repeat("long-name/", 15) + "end"
	b.sh(`mkdir -p /src/sub/empty "/src/` + long[:len(long)-4] + `"; cd /src; echo one > one; chmod 4711 one; ln one two; ln -s one sym
		echo deep > "` + long + `"; mkfifo pipe; touch -d '2001-02-03 04:05:06.7' sub; chmod 555 sub/empty; head -c 100000 /dev/urandom > random; : > zero`)
	r, err := b.c.OpenTar(b.ctx, "/src", "")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	// Another implementation reads it.
	seen := make(map[string]*tar.Header)
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		seen[h.Name] = h
	}
	for _, name := range []string{"./", "one", "two", "sym", long, "pipe", "sub/empty/", "random", "zero"} {
		if seen[name] == nil {
			t.Errorf("no %s in the archive", name)
		}
	}
	if seen["sub/"].ModTime.UnixNano() != time.Date(2001, 2, 3, 4, 5, 6, 7e8, time.UTC).UnixNano() {
		t.Errorf("%v", seen["sub/"].ModTime)
	}
	if err := b.unpack("/dst/new", "", archive); err != nil {
		t.Fatal(err)
	}
	list := "cd %s && find . -mindepth 1 -printf '%%P %%y %%m %%l %%T@ %%n\\n' | sort && find . -type f | sort | xargs -d '\\n' sha256sum"
	if a, c := b.sh(fmt.Sprintf(list, "/src")), b.sh(fmt.Sprintf(list, "/dst/new")); a != c {
		t.Errorf("unpacked differs:\n%s\n%s", a, c)
	}
	// And it reads another's, over what is there, as a user.
	b.sh("tar -C /src -cf /tmp/gnu.tar . ; tar -C /src --format=pax -cf /tmp/pax.tar .; mkdir -m 777 /dst/user")
	for _, f := range []string{"/tmp/gnu.tar", "/tmp/pax.tar"} {
		archive, err := b.read(f, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.unpack("/dst/user", "nobody", []byte(archive)); err != nil {
			t.Fatal(f, err)
		}
		if got := b.sh("cat '/dst/user/" + long + "'; stat -c %U /dst/user/two"); got != "deep\nnobody\n" {
			t.Error(got)
		}
	}
	// A single file.
	if r, err = b.c.OpenTar(b.ctx, "/src/one", ""); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(r).Next(); err != nil || h.Name != "one" || h.Size != 4 {
		t.Errorf("%+v %v", h, err)
	}
	r.Close()
	_, err = b.c.OpenTar(b.ctx, "/none", "")
	b.wantCode(err, wire.CodeNotFound)
	// The whole system, without what is mounted.
	if r, err = b.c.OpenTar(b.ctx, "/etc", ""); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, r); err != nil || n < 100_000 {
		t.Error(n, err)
	}
}

func (b *box) unpack(path, user string, archive []byte) error {
	w, err := b.c.Unpack(b.ctx, path, user)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Write(archive); err != nil {
		var e *wire.Error
		if !errors.As(err, &e) {
			b.t.Error(err)
		}
		return err
	}
	return w.Commit(b.ctx)
}

func TestHostileArchives(t *testing.T) {
	b := newBox(t, nil)
	b.sh("mkdir /out; echo safe > /out/file; chmod 600 /out/file")
	file := func(name string) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 4, Mode: 0o666}
	}
	for _, c := range []struct {
		name    string
		members []tar.Header
		want    wire.Code
	}{
		{"absolute", []tar.Header{file("/out/evil")}, wire.CodeInvalid},
		{"dots", []tar.Header{file("../out/evil")}, wire.CodeInvalid},
		{"inner dots", []tar.Header{file("a/../../out/evil")}, wire.CodeInvalid},
		{"through link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/out"}, file("l/evil")}, wire.CodeInvalid},
		{"through relative link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../out"}, file("l/evil")}, wire.CodeInvalid},
		{"through magic link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/proc/self/cwd"}, file("l/evil")}, wire.CodeInvalid},
		{"over link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/out/file"}, file("l")}, 255},
		{"hard link out", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "../out/file"}}, wire.CodeInvalid},
		{"hard link absolute", []tar.Header{{Name: "h", Typeflag: tar.TypeLink, Linkname: "/out/file"}}, wire.CodeInvalid},
		{"hard link through link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/out"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/file"}}, wire.CodeInvalid},
		{"directory over link", []tar.Header{{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/out"}, {Name: "l/", Typeflag: tar.TypeDir, Mode: 0o777}, file("l/x")}, 255},
		{"device", []tar.Header{{Name: "dev", Typeflag: tar.TypeBlock, Devmajor: 254}}, wire.CodeInvalid},
	} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		for _, h := range c.members {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				io.WriteString(w, "evil")
			}
		}
		w.Close()
		err := b.unpack("/in/"+strings.ReplaceAll(c.name, " ", "-"), "", buf.Bytes())
		if c.want == 255 && err != nil || c.want != 255 && code(err) != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if got := b.sh("ls /out; cat /out/file; stat -c '%a %h' /out/file /out"); got != "file\nsafe\n600 1\n755 2\n" && got != "file\nsafe\n600 1\n755 1\n" {
		t.Errorf("outside changed: %q", got)
	}
	for name, archive := range map[string]string{
		"garbage": strings.Repeat("garbage!", 1000), "short": strings.Repeat("\x01", 100),
	} {
		if err := b.unpack("/in/"+name, "", []byte(archive)); code(err) != wire.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestFramesAtTheBuffersEnd: a frame's head may end up cut in two at the end of the buffer that frames are taken from. Many
// files that are sent as fast as they go meet that, some sooner, some later.
func TestFramesAtTheBuffersEnd(t *testing.T) {
	b := newBox(t, &wire.Claim{})
	data := strings.Repeat("0123456789abcdef", 1<<16)
	for k := range 100 {
		if err := b.write(wire.OpenWrite{Path: "/tmp/big"}, data); err != nil {
			t.Fatalf("file %d: %v", k, err)
		}
	}
}
