package initd_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/internal/testkit/patience"
)

func TestExits(t *testing.T) {
	b := newBox(t, nil)
	for _, c := range []struct {
		start        wire.Start
		code, signal int32
		out, err     string
	}{
		{wire.Start{Shell: "echo out; echo err >&2; exit 3"}, 3, 0, "out\n", "err\n"},
		{wire.Start{Argv: []string{"echo", "a b", ""}}, 0, 0, "a b \n", ""},
		{wire.Start{Argv: []string{"/bin/sh", "-c", "kill -TERM $$"}}, 0, 15, "", ""},
		{wire.Start{Shell: "kill -SEGV $$"}, 0, 11, "", ""},
		{wire.Start{Shell: "printf '\\000\\377'"}, 0, 0, "\x00\xff", ""},
		{wire.Start{Shell: "cat; echo end"}, 0, 0, "end\n", ""},
		{wire.Start{Shell: "pwd", Cwd: "/usr/bin"}, 0, 0, "/usr/bin\n", ""},
		{wire.Start{Shell: "umask; ulimit -n; ulimit -c; trap"}, 0, 0, "0022\n1024\n0\n", ""},
		{wire.Start{Shell: "echo $A-$B", Env: []string{"A=1", "B=x=y", "A=2"}}, 0, 0, "2-x=y\n", ""},
		{wire.Start{Shell: "ls -l /proc/self/fd | wc -l"}, 0, 0, "5\n", ""},
		{wire.Start{Shell: "hostname; echo $$ | grep -q . && test -d /proc/$$ && echo proc"}, 0, 0, "sandbox\nproc\n", ""},
	} {
		res := b.run(c.start)
		if res.Exit.Code != c.code || res.Exit.Signal != c.signal ||
			string(res.Bytes[wire.Stdout]) != c.out || string(res.Bytes[wire.Stderr]) != c.err {
			t.Errorf("%+v: %+v %q %q", c.start, res.Exit, res.Bytes[wire.Stdout], res.Bytes[wire.Stderr])
		}
	}
}

func TestRefusals(t *testing.T) {
	b := newBox(t, nil)
	b.sh("echo '#!/nonexistent' > /tmp/badscript; chmod 755 /tmp/badscript; echo hi > /tmp/plain; mkfifo /tmp/fifo")
	long := strings.Repeat("x", 100_000)
	var many []string
	for range 21 {
		many = append(many, long)
	}
	for _, c := range []struct {
		start wire.Start
		want  wire.Code
	}{
		{wire.Start{Argv: []string{"no-such-program"}}, wire.CodeNoProgram},
		{wire.Start{Argv: []string{"/no/such"}}, wire.CodeNoProgram},
		{wire.Start{Argv: []string{"/tmp/badscript"}}, wire.CodeNoProgram},
		{wire.Start{Argv: []string{"/tmp/plain"}}, wire.CodeNotExecutable},
		{wire.Start{Argv: []string{"/tmp"}}, wire.CodeNotExecutable},
		{wire.Start{Shell: "true", Cwd: "/nowhere"}, wire.CodeNoCwd},
		{wire.Start{Shell: "true", Cwd: "/root", User: "nobody"}, wire.CodeNoCwd},
		{wire.Start{Shell: "true", User: "nobody-like-this"}, wire.CodeNoUser},
		{wire.Start{Shell: "true", User: "4000000000"}, wire.CodeNoUser},
		{wire.Start{Shell: "true", Env: []string{"novalue"}}, wire.CodeInvalid},
		{wire.Start{Shell: "true", Argv: []string{"true"}}, wire.CodeInvalid},
		{wire.Start{}, wire.CodeInvalid},
		{wire.Start{Shell: "a\x00b"}, wire.CodeInvalid},
		{wire.Start{Argv: append([]string{"true"}, many...)}, wire.CodeInvalid},
		{wire.Start{Argv: append([]string{"true", long + long}, many...)}, wire.CodeInvalid},
		{wire.Start{Shell: "true", Session: "none"}, wire.CodeNotFound},
	} {
		_, err := b.try(c.start)
		if code(err) != c.want {
			t.Errorf("%.200v: %v, want code %d", c.start, err, c.want)
		}
	}
	// None of these may have left anything.
	if l, err := b.c.List(b.ctx); err != nil || len(l) != 0 {
		t.Errorf("left: %v %v", l, err)
	}
	start := wire.Start{ID: "same", Shell: "sleep 1000"}
	if _, err := b.c.Start(b.ctx, &start, nil); err != nil {
		t.Fatal(err)
	}
	_, err := b.c.Start(b.ctx, &start, nil)
	b.wantCode(err, wire.CodeExists)
	b.wantCode(b.c.Signal(b.ctx, "other", 9, false), wire.CodeNotFound)
	b.wantCode(b.c.Input(b.ctx, "same", []byte("x"), false), wire.CodeInvalid)
	b.wantCode(b.c.Resize(b.ctx, "same", 10, 10), wire.CodeInvalid)
}

func TestUsers(t *testing.T) {
	b := newBox(t, &wire.Claim{Hostname: "h", Env: []string{"FROM=claim", "HOME=/claimed"}})
	b.sh("echo 'alice:x:1234:1235:A:/tmp:/bin/sh' >> /etc/passwd; echo 'crew:x:77:alice,bob' >> /etc/group; echo 'own:x:78:' >> /etc/group")
	for _, c := range []struct{ user, want string }{
		{"", "0 0 0 root /claimed claim"},
		{"alice", "1234 1235 1235 77 alice /claimed claim"},
		{"alice:own", "1234 78 78 alice /claimed claim"},
		{"1234", "1234 1235 1235 77 alice /claimed claim"},
		{"4321:99", "4321 99 99 4321 /claimed claim"},
	} {
		got := b.run(wire.Start{Shell: "echo $(id -u) $(id -g) $(id -G) $USER $HOME $FROM", User: c.user})
		if strings.TrimSpace(string(got.All)) != c.want {
			t.Errorf("%q: %q, want %q", c.user, got.All, c.want)
		}
	}
	// No capability for users, the bounded set for root.
	caps := b.run(wire.Start{Shell: "grep Cap /proc/self/status", User: "alice"})
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapAmb"} {
		if !strings.Contains(string(caps.All), set+":\t0000000000000000") {
			t.Errorf("user: %s", caps.All)
		}
	}
	if got := b.sh("grep -E 'Cap(Eff|Bnd)' /proc/self/status"); strings.Count(got, "00000000a80425fb") != 2 {
		t.Errorf("root: %s", got)
	}
}

func TestInput(t *testing.T) {
	b := newBox(t, nil)
	c := b.start(wire.Start{Argv: []string{"wc", "-c"}, Stdin: true})
	block := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	for range 20 {
		if err := b.c.Input(b.ctx, c, block, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.c.Input(b.ctx, c, []byte("end"), true); err != nil {
		t.Fatal(err)
	}
	if res := b.wait(c); string(res.All) != fmt.Sprintln(20*len(block)+3) {
		t.Errorf("%q", res.All)
	}
	b.wantCode(b.c.Input(b.ctx, c, []byte("late"), false), wire.CodeClosed)

	// A command that does not read: input waits, within bounds, and is refused when the command ends.
	c = b.start(wire.Start{Shell: "read x; exec sleep 1000", Stdin: true})
	errs := make(chan error, 8)
	for range 8 {
		go func() { errs <- b.c.Input(b.ctx, c, block, false) }()
	}
	exhausted := 0
	for range 4 { // 64 KiB fit in the pipe, two requests wait
		if code(<-errs) == wire.CodeExhausted {
			exhausted++
		}
	}
	if exhausted != 4 {
		t.Errorf("%d refused", exhausted)
	}
	if err := b.c.Signal(b.ctx, c, 9, false); err != nil {
		t.Fatal(err)
	}
	if res := b.wait(c); res.Exit.Signal != 9 || !res.Exit.Killed {
		t.Errorf("%+v", res.Exit)
	}
}

func TestBackgroundDoesNotHang(t *testing.T) {
	b := newBox(t, nil)
	if got := b.sh("sleep 1000 & echo started"); got != "started\n" {
		t.Error(got)
	}
	// What floods after the leader's end is discarded, and not stopped either.
	b.sh("(while :; do echo flood; done) & echo $! > /tmp/pid")
	if got := b.sh("kill -0 $(cat /tmp/pid) && echo alive; kill $(cat /tmp/pid)"); got != "alive\n" {
		t.Error(got)
	}
}

func TestTimeout(t *testing.T) {
	b := newBox(t, nil)
	res := b.run(wire.Start{Shell: "echo begun; setsid sleep 1000 & (trap '' TERM; sleep 1000); echo not", TimeoutMillis: 1000 * int64(patience.Factor())})
	if !res.Exit.TimedOut || res.Exit.Signal != 9 || string(res.All) != "begun\n" {
		t.Errorf("%+v %q", res.Exit, res.All)
	}
	if got := b.sh("pgrep -c sleep || true"); got != "0\n" {
		t.Errorf("%s left", got)
	}
}

func TestTimeoutByGroup(t *testing.T) {
	b := newBox(t, nil)
	g := guesttest.NewGroup(t)
	s := wire.Start{ID: id(), Shell: "(setsid sh -c '(sleep 1000; :) & sleep 1000' &) ; sleep 1000", TimeoutMillis: 200}
	if _, err := b.c.Start(b.ctx, &s, g.Files()); err != nil {
		t.Fatal(err)
	}
	if res := b.wait(s.ID); !res.Exit.TimedOut || res.Exit.Signal != 9 {
		t.Errorf("%+v", res.Exit)
	}
	g.WaitEmpty(b.ctx)
}

func TestTerminal(t *testing.T) {
	b := newBox(t, nil)
	c := b.start(wire.Start{Argv: []string{"bash", "--norc", "-i"}, Terminal: true, Columns: 100, Rows: 30, User: "nobody", Cwd: "/"})
	say := func(s string) {
		t.Helper()
		if err := b.c.Input(b.ctx, c, []byte(s), false); err != nil {
			t.Fatal(err)
		}
	}
	say("stty -echo; PS1=; stty size; tty; echo T=$TERM\n")
	b.until(c, "T=xterm-256color\r\n")
	b.until(c, "30 100\r\n/dev/pts/0")
	if err := b.c.Resize(b.ctx, c, 81, 25); err != nil {
		t.Fatal(err)
	}
	say("stty size\n")
	b.until(c, "25 81\r\n")
	// Job control: interrupt the foreground, stop and continue.
	say("PS1='P>'; sh -c 'echo asleep; exec sleep 1000'\n")
	b.until(c, "asleep\r\n")
	say("\x03")
	b.until(c, "P>")
	say("echo after $?\n")
	b.until(c, "after 130\r\n")
	say("sleep 1000 & jobs; kill %1; wait\n")
	b.until(c, "Running")
	say("exit 3\n")
	if res := b.wait(c); res.Exit.Code != 3 {
		t.Errorf("%+v", res.Exit)
	}
	// End of input as a terminal has it.
	c = b.start(wire.Start{Argv: []string{"cat"}, Terminal: true})
	if err := b.c.Input(b.ctx, c, []byte("line\n"), true); err != nil {
		t.Fatal(err)
	}
	if res := b.wait(c); res.Exit.Code != 0 || string(res.Bytes[wire.Terminal]) != "line\r\nline\r\n" {
		t.Errorf("%+v %q", res.Exit, res.All)
	}
}

func TestOutputIsBoundedAndComplete(t *testing.T) {
	b := newBox(t, nil)
	b.r.Hold(true)
	c := b.start(wire.Start{Shell: "head -c 3000000 /dev/zero | tr '\\0' x; echo done >&2"})
	// Without acknowledgements the writer waits when the buffer is full.
	if _, err := b.r.Until(b.ctx, c, func(r *guesttest.Result) bool { return r.End >= 256<<10 }); err != nil {
		t.Fatal(err)
	}
	// Others go on meanwhile.
	b.sh("true")
	l, err := b.c.List(b.ctx)
	if err != nil || len(l) == 0 {
		t.Fatal(l, err)
	}
	for _, s := range l {
		if s.ID == c && (s.Ended || s.End > 256<<10) {
			t.Errorf("%+v", s)
		}
	}
	b.r.Hold(false)
	b.c.Ack(c, 256<<10)
	res := b.wait(c)
	if len(res.Bytes[wire.Stdout]) != 3000000 || string(res.Bytes[wire.Stderr]) != "done\n" {
		t.Errorf("%d %q", len(res.Bytes[wire.Stdout]), res.Bytes[wire.Stderr])
	}
}

func TestYesIsKilled(t *testing.T) {
	b := newBox(t, nil)
	c := b.start(wire.Start{Argv: []string{"yes"}})
	if _, err := b.r.Until(b.ctx, c, func(r *guesttest.Result) bool { return r.End > 8<<20 }); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		b.sh("true")
	}
	if err := b.c.Signal(b.ctx, c, int32(unix.SIGTERM), true); err != nil {
		t.Fatal(err)
	}
	if res := b.wait(c); res.Exit.Signal != 15 || !res.Exit.Killed {
		t.Errorf("%+v", res.Exit)
	}
}
