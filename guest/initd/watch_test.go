package initd_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/wire"
)

// until reads events until one is among the wanted ones, and returns all of them in words.
func until(t *testing.T, w *aether.Watch, wanted ...string) map[string]bool {
	t.Helper()
	seen := map[string]bool{}
	for {
		e, err := w.Next()
		if err != nil {
			t.Fatalf("waiting for %q: %v; so far %v", wanted, err, seen)
		}
		word := map[wire.WatchKind]string{
			wire.WatchCreated: "created", wire.WatchWritten: "written", wire.WatchRemoved: "removed", wire.WatchMoved: "moved",
			wire.WatchAttributes: "attributes", wire.WatchLost: "lost",
		}[e.Kind] + " " + e.Name
		if e.Dir {
			word += "/"
		}
		seen[word] = true
		if slices.Contains(wanted, word) {
			return seen
		}
	}
}

func (b *box) watch(t *testing.T, path, user string, recursive bool) *aether.Watch {
	t.Helper()
	w, err := b.c.Watch(b.ctx, path, user, recursive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

func TestWatch(t *testing.T) {
	b := newBox(t, &wire.Claim{Workdir: "/srv"})
	b.sh("mkdir -p /srv/w/old/deep; ln -s /srv /srv/w/link")
	flat := b.watch(t, "w", "", false)
	deep := b.watch(t, "/srv/w", "", true)
	b.sh(`cd /srv/w; echo hello > a; chmod 600 a; mv a b; rm b; echo x > old/deep/x; : > "$(printf 'odd\377')"; : > end`)
	seen := until(t, flat, "created end")
	for _, want := range []string{"created a", "written a", "attributes a", "moved a", "created b", "removed b", "created odd\xff"} {
		if !seen[want] {
			t.Errorf("flat: no %q in %v", want, seen)
		}
	}
	if seen["created old/deep/x"] {
		t.Errorf("flat: %v", seen)
	}
	if seen = until(t, deep, "created end"); !seen["created old/deep/x"] || !seen["written old/deep/x"] {
		t.Errorf("deep: %v", seen)
	}
	// What is made in a directory that is new is told, whenever it is made; links lead nowhere; moved trees have their new names.
	b.sh("cd /srv/w; mkdir -p n/m; echo 1 > n/m/first; echo 1 > link/elsewhere; mv old new")
	until(t, deep, "created n/m/first")
	b.sh("echo 2 > /srv/w/n/m/second")
	until(t, deep, "written n/m/second")
	b.sh("echo 3 > /srv/w/new/deep/third")
	seen = until(t, deep, "created new/deep/third")
	if seen["written old/deep/third"] || seen["created link/elsewhere"] {
		t.Errorf("deep: %v", seen)
	}
	b.sh("rm -r /srv/w")
	var e *wire.Error
	for _, w := range []*aether.Watch{flat, deep} {
		err := error(nil)
		for err == nil {
			_, err = w.Next()
		}
		if !errors.As(err, &e) || e.Code != wire.CodeNotFound {
			t.Errorf("after the directory's end: %v", err)
		}
	}
}

func TestWatchRefusals(t *testing.T) {
	b := newBox(t, &wire.Claim{})
	b.sh("mkdir -m 700 /secret; echo 'alice:x:1234:1235::/tmp:/bin/sh' >> /etc/passwd; mkdir -p /open/secret /open/mine; chmod 700 /open/secret")
	for _, c := range []struct {
		path, user string
		code       wire.Code
	}{
		{"/none", "", wire.CodeNotFound},
		{"/etc/passwd", "", wire.CodeNotDirectory},
		{"/secret", "alice", wire.CodePermission},
		{"/proc", "", wire.CodeInvalid},
		{"/proc/self/cwd", "", wire.CodeInvalid},
		{"/", "nobody-such", wire.CodeNoUser},
	} {
		w, err := b.c.Watch(b.ctx, c.path, c.user, false)
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s as %q: %v", c.path, c.user, err)
		}
		if err == nil {
			w.Close()
		}
	}
	// What a user may not read is not told, however it is asked for.
	w := b.watch(t, "/open", "alice", true)
	b.sh(": > /open/secret/x; : > /open/mine/y")
	if seen := until(t, w, "created mine/y"); seen["created secret/x"] {
		t.Errorf("%v", seen)
	}
}

// TestWatchBounds: what nobody reads is left out, and this is told; 1,024 watches and no more; those that end make room.
func TestWatchBounds(t *testing.T) {
	b := newBox(t, &wire.Claim{})
	b.sh("mkdir /d /slow")
	slow := b.watch(t, "/slow", "", false)
	b.sh("cd /slow; seq -f " + strings.Repeat("x", 200) + "%g 1000 | xargs touch")
	until(t, slow, "lost ")
	for n := 0; ; n++ { // what has not been read yet may leave no room for this one either: then that is told again
		name := fmt.Sprint("after", n)
		b.sh(": > /slow/" + name)
		if until(t, slow, "created "+name, "lost ")["created "+name] {
			break
		}
	}
	list := []*aether.Watch{slow}
	for len(list) < 1024 {
		list = append(list, b.watch(t, "/d", "", true))
	}
	var e *wire.Error
	if _, err := b.c.Watch(b.ctx, "/d", "", false); !errors.As(err, &e) || e.Code != wire.CodeExhausted {
		t.Fatalf("one more: %v", err)
	}
	b.sh("mkdir /d/sub; : > /d/sub/file")
	for k, w := range list[1:] {
		if seen := until(t, w, "created sub/file"); !seen["created sub/"] {
			t.Fatalf("watch %d: %v", k, seen)
		}
	}
	for _, w := range list {
		w.Close()
	}
	for n := 0; ; n++ { // the ends are on their way
		w, err := b.c.Watch(b.ctx, "/d", "", false)
		if err == nil {
			w.Close()
			break
		}
		if b.ctx.Err() != nil {
			t.Fatal(fmt.Errorf("after %d tries: %w", n, err))
		}
	}
	// More directories than are watched: refused at first, told when they come later.
	b.sh("mkdir /many /later; cd /many; i=0; while [ $i -lt 83 ]; do mkdir -p $(seq -f $i/%g 100); i=$((i+1)); done")
	if _, err := b.c.Watch(b.ctx, "/many", "", true); !errors.As(err, &e) || e.Code != wire.CodeExhausted {
		t.Fatalf("8,383 directories: %v", err)
	}
	later := b.watch(t, "/later", "", true)
	b.sh("mv /many /later/many")
	until(t, later, "lost ")
	b.sh(": > /later/end")
	until(t, later, "created end")
}
