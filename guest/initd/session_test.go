package initd_test

import (
	"strings"
	"testing"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

// shells are the two that sessions are tested with: the second sandbox has no bash.
func eachShell(t *testing.T, f func(t *testing.T, b *box)) {
	t.Run("bash", func(t *testing.T) { f(t, newBox(t, nil)) })
	t.Run("dash", func(t *testing.T) {
		b := newBox(t, nil)
		b.sh("rm /bin/bash")
		f(t, b)
	})
}

func (b *box) session() string {
	b.t.Helper()
	name := id()
	if err := b.c.OpenSession(b.ctx, &wire.OpenSession{ID: name, Cwd: "/tmp", Env: []string{"S=1"}}, nil); err != nil {
		b.t.Fatal(err)
	}
	return name
}

func (b *box) in(session, script string) guesttest.Result {
	b.t.Helper()
	return b.run(wire.Start{Session: session, Shell: script})
}

func TestSession(t *testing.T) {
	eachShell(t, func(t *testing.T, b *box) {
		s := b.session()
		for _, c := range []struct {
			script string
			code   int32
			out    string // substring; "=" = exactly
		}{
			{"pwd; echo $S", 0, "=/tmp\n1\n"},
			{"cd /usr; export X='a b'; f() { echo in f $1; return 4; }", 0, "="},
			{"pwd; echo \"$X\"; f 2", 4, "=/usr\na b\nin f 2\n"},
			{"false", 1, "="},
			{"echo 'unbalanced", 2, ""},
			{"if true; then", 2, ""},
			{"for )", 2, ""},
			{"cat <<END\nhere $X\nEND", 0, "=here a b\n"},
			{"cat <<END\nno end", 0, "no end"},
			{"echo it\\'s 'q\"q' \"$(echo sub)\"", 0, "=it's q\"q sub\n"},
			{"sleep 1000 & echo bg", 0, "bg"},
			{"kill $!; wait $! 2>/dev/null; echo gone $?", 0, "gone 143"},
			{"cat; read x || echo empty", 0, "=empty\n"},
			{"(exit 9)", 9, "="},
			{"printf 'no newline'; printf err >&2", 0, "no newline"},
			{"ls /proc/self/fd | tr '\\n' ' '", 0, "=0 1 2 3 "},
			{"break; continue 5; echo on", 0, "on\n"},
			{"return 3; :", -1, ""},
			{"sh -c 'kill -9 $$'", 137, ""},
			{"set -x; echo traced; set +x", 0, "traced\n"},
			{"trap 'echo trapped' USR1; kill -USR1 $$; echo x", 0, "trapped\n"},
			{"nosuchcommand", 127, "not found"},
			{strings.Repeat("# a long comment\n", 4000) + "echo long", 0, "=long\n"},
			{"echo last; exec 3>/tmp/kept", 0, "last"},
			{"echo through >&3; exec 3>&-; cat /tmp/kept", 0, "=through\n"},
		} {
			res := b.in(s, c.script)
			want, exact := strings.CutPrefix(c.out, "=")
			if c.code >= 0 && res.Exit.Code != c.code && !(c.code == 2 && res.Exit.Code == 1) || res.Exit.Signal != 0 || c.code >= 0 && res.Exit.SessionEnded ||
				exact && string(res.All) != want || !strings.Contains(string(res.All), want) {
				t.Errorf("%.80q: %+v %q", c.script, res.Exit, res.All)
			}
			if res.Exit.SessionEnded {
				s = b.session()
			}
		}
		if err := b.c.CloseSession(b.ctx, s); err != nil {
			t.Fatal(err)
		}
		_, err := b.try(wire.Start{Session: s, Shell: "true"})
		b.wantCode(err, wire.CodeNotFound)
	})
}

func TestSessionEnds(t *testing.T) {
	eachShell(t, func(t *testing.T, b *box) {
		for _, c := range []struct {
			script string
			code   int32
		}{
			{"echo bye; exit 7", 7},
			{"exec sh -c 'echo other; exit 8'", 8},
			{"set -e; false; echo not reached", 1},
		} {
			s := b.session()
			res := b.in(s, c.script)
			if !res.Exit.SessionEnded || res.Exit.Code != c.code {
				t.Errorf("%s: %+v %q", c.script, res.Exit, res.All)
			}
			if exit, err := b.r.WaitSession(b.ctx, s); err != nil || exit.Code != c.code {
				t.Errorf("%s: %+v %v", c.script, exit, err)
			}
			_, err := b.try(wire.Start{Session: s, Shell: "true"})
			b.wantCode(err, wire.CodeSessionEnded)
			if err := b.c.CloseSession(b.ctx, s); err != nil {
				t.Error(err)
			}
		}
		// A shell that closes its status pipe, all copies of it, is of no use.
		s := b.session()
		res := b.in(s, `for f in /proc/$$/fd/*; do f=${f##*/}; case $(readlink /proc/$$/fd/$f) in pipe:*) test $f -lt 3 || eval "exec $f>&-";; esac; done`)
		if !res.Exit.SessionEnded {
			t.Errorf("%+v", res.Exit)
		}
	})
}

func TestSessionTimeout(t *testing.T) {
	eachShell(t, func(t *testing.T, b *box) {
		g := guesttest.NewGroup(t)
		s := id()
		if err := b.c.OpenSession(b.ctx, &wire.OpenSession{ID: s}, g.Files()); err != nil {
			t.Fatal(err)
		}
		b.in(s, "V=kept")
		res := b.run(wire.Start{Session: s, Shell: "sleep 1000; echo cut", TimeoutMillis: 100})
		if !res.Exit.TimedOut || res.Exit.SessionEnded {
			t.Errorf("%+v", res.Exit)
		}
		if res := b.in(s, "echo $V"); string(res.All) != "kept\n" {
			t.Errorf("%+v %q", res.Exit, res.All)
		}
		// Busy by itself: the shell cannot be kept.
		res = b.run(wire.Start{Session: s, Shell: "while :; do :; done", TimeoutMillis: 100})
		if !res.Exit.TimedOut || !res.Exit.SessionEnded {
			t.Errorf("%+v", res.Exit)
		}
		g.WaitEmpty(b.ctx)

		// Closing takes the whole tree along, while a command runs.
		g = guesttest.NewGroup(t)
		s = id()
		if err := b.c.OpenSession(b.ctx, &wire.OpenSession{ID: s, User: "nobody", Cwd: "/"}, g.Files()); err != nil {
			t.Fatal(err)
		}
		c := b.start(wire.Start{Session: s, Shell: "id -un; (setsid sleep 1000 &); sleep 1000"})
		b.until(c, "nobody\n")
		_, err := b.try(wire.Start{Session: s, Shell: "true"})
		b.wantCode(err, wire.CodeWrongState)
		if err := b.c.CloseSession(b.ctx, s); err != nil {
			t.Fatal(err)
		}
		if res := b.wait(c); !res.Exit.SessionEnded || res.Exit.Signal != 9 {
			t.Errorf("%+v", res.Exit)
		}
		g.WaitEmpty(b.ctx)
	})
}
