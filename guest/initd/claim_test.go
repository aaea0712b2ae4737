package initd_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

// TestHostileImages: what an image has in the place of the directories that a claim needs leads nowhere.
func TestHostileImages(t *testing.T) {
	for name, make := range map[string]func(upper string) error{
		"proc is a link":   func(u string) error { return os.Symlink("/etc", filepath.Join(u, "proc")) },
		"dev is a link":    func(u string) error { return os.Symlink("..", filepath.Join(u, "dev")) },
		"sys is a file":    func(u string) error { return os.WriteFile(filepath.Join(u, "sys"), nil, 0o644) },
		"link to a loop":   func(u string) error { return os.Symlink("dev", filepath.Join(u, "dev")) },
		"absolute to proc": func(u string) error { return os.Symlink("/proc", filepath.Join(u, "sys")) },
	} {
		t.Run(name, func(t *testing.T) {
			s := guesttest.Spawn(t, guesttest.Options{})
			root, upper := guesttest.Root(t)
			if err := make(upper); err != nil {
				t.Fatal(err)
			}
			c := s.Open()
			ctx, cancel := guesttest.Context(t)
			defer cancel()
			var e *wire.Error
			if err := c.Claim(ctx, &wire.Claim{}, root); !errors.As(err, &e) || e.Code != wire.CodeInvalid {
				t.Errorf("claim = %v, want one that is refused as invalid", err)
			}
		})
	}
}

// TestUnusualUsers: passwd files that would block or mislead a careless reader.
func TestUnusualUsers(t *testing.T) {
	b := newBox(t, nil)
	for _, prepare := range []string{
		"rm /etc/passwd; mkfifo /etc/passwd",
		"rm /etc/passwd; ln -s /dev/zero /etc/passwd",
		"rm /etc/passwd; ln -s /proc/self/mem /etc/passwd",
		"rm /etc/passwd; ln -s passwd /etc/passwd",
		"rm /etc/passwd; mkdir /etc/passwd",
	} {
		b.sh(prepare)
		if res := b.run(wire.Start{Shell: "id -u", User: "0"}); string(res.All) != "0\n" {
			t.Errorf("%s: %q", prepare, res.All)
		}
		_, err := b.try(wire.Start{Shell: "true", User: "nobody"})
		b.wantCode(err, wire.CodeNoUser)
		b.sh("rm -r /etc/passwd; : > /etc/passwd")
	}
	b.sh("head -c 100000000 /dev/zero | tr '\\0' x > /etc/passwd; echo 'late:x:5:5::/:/bin/sh' >> /etc/passwd")
	_, err := b.try(wire.Start{Shell: "true", User: "late"})
	b.wantCode(err, wire.CodeNoUser)
}

// TestQuietGivesBack: after work, memory goes back.
func TestQuietGivesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for quiet")
	}
	b := newBox(t, nil)
	for range 2000 {
		b.run(wire.Start{Shell: "head -c 20000 /dev/zero"})
	}
	if err := b.write(wire.OpenWrite{Path: "/f"}, string(make([]byte, 4<<20))); err != nil {
		t.Fatal(err)
	}
	busy := b.Memory(t)
	for {
		m := b.Memory(t)
		if m.Anonymous < 2<<20 && m.Anonymous < busy.Anonymous {
			t.Logf("%+v, then %+v", busy, m)
			return
		}
		if b.ctx.Err() != nil {
			t.Fatalf("%+v, then %+v", busy, m)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
