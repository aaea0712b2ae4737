package initd_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/opendsec/dsec/guest/aether"
	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

// succeed drops the connection and continues on a new one as a successor does.
func (b *box) succeed(polite bool) {
	b.t.Helper()
	if polite {
		b.c.Close()
		if reason, err := b.r.WaitClosed(b.ctx); !errors.Is(reason, aether.ErrClosed) || err != nil {
			b.t.Error(reason, err)
		}
	}
	c := b.Open()
	if !polite {
		// The older connection is closed by dsec-init.
		if reason, err := b.r.WaitClosed(b.ctx); !errors.Is(reason, aether.ErrClosed) || err != nil {
			b.t.Error(reason, err)
		}
	}
	r := b.r.Follow(c)
	list, err := c.List(b.ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	c.Serve(r)
	for _, s := range list {
		res, _ := r.Until(b.ctx, s.ID, func(*guesttest.Result) bool { return true })
		if err := c.Resume(b.ctx, s.ID, res.End); err != nil {
			b.t.Fatal(err)
		}
	}
	b.c, b.r = c, r
}

func TestReconnectLosesNothing(t *testing.T) {
	b := newBox(t, nil)
	const lines = 60000
	ids := make([]string, 4)
	for k := range ids {
		ids[k] = b.start(wire.Start{Shell: fmt.Sprintf("seq %d; echo end >&2; exit %d", lines, k)})
	}
	for round := range 12 {
		k := round % len(ids)
		want := int64(round+1) * 10000
		if _, err := b.r.Until(b.ctx, ids[k], func(r *guesttest.Result) bool { return r.End >= want || r.Ended }); err != nil {
			t.Fatal(err)
		}
		b.succeed(round%2 == 0)
	}
	var want strings.Builder
	for n := range lines {
		fmt.Fprintln(&want, n+1)
	}
	for k, c := range ids {
		res := b.wait(c)
		if string(res.Bytes[wire.Stdout]) != want.String() || string(res.Bytes[wire.Stderr]) != "end\n" || res.Exit.Code != int32(k) {
			t.Errorf("%+v: %d bytes, want %d", res.Exit, len(res.Bytes[wire.Stdout]), want.Len())
		}
	}
	// The exit comes again until it is released, then never.
	b.succeed(true)
	b.wait(ids[0])
	for _, c := range ids {
		b.c.Release(c)
	}
	b.sh("true")
	l, err := b.c.List(b.ctx)
	if err != nil || len(l) > 1 {
		t.Errorf("%v %v", l, err)
	}
}

func TestCommandsRunWithoutAnEdge(t *testing.T) {
	b := newBox(t, nil)
	c := b.start(wire.Start{Shell: "read x; seq 3; exit 5", Stdin: true})
	if err := b.c.Input(b.ctx, c, []byte("go\n"), false); err != nil {
		t.Fatal(err)
	}
	s := b.session()
	w, err := b.c.OpenWrite(b.ctx, &wire.OpenWrite{Path: "/root/half"})
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(w, "half")
	b.succeed(true)
	if res := b.wait(c); string(res.All) != "1\n2\n3\n" || res.Exit.Code != 5 {
		t.Errorf("%+v %q", res.Exit, res.All)
	}
	// The session lives on; the file that was being written does not.
	if res := b.in(s, "echo still"); string(res.All) != "still\n" {
		t.Errorf("%+v %q", res.Exit, res.All)
	}
	b.eventually("ls -A /root | grep -E 'half|dsec-' | wc -l", "0\n")
	if _, err := io.WriteString(w, "more"); err == nil {
		t.Error("a stream survived its connection")
	}
	// A session that ended while nobody listened is reported.
	d := b.start(wire.Start{Session: s, Shell: "sleep 0.2; exit 6"})
	b.succeed(true)
	if exit, err := b.r.WaitSession(b.ctx, s); err != nil || exit.Code != 6 {
		t.Errorf("%+v %v", exit, err)
	}
	if res := b.wait(d); !res.Exit.SessionEnded || res.Exit.Code != 6 {
		t.Errorf("%+v", res.Exit)
	}
}

func TestStaleEdgeLoses(t *testing.T) {
	b := newBox(t, nil)
	b.succeed(false)
	nc, err := net.Dial("unix", b.Socket)
	if err != nil {
		t.Fatal(err)
	}
	_, err = aether.Open(b.ctx, nc, 1)
	b.wantCode(err, wire.CodeWrongState)
	b.sh("true")
	// A second claim is refused.
	root, _ := guesttest.Root(t)
	b.wantCode(b.c.Claim(b.ctx, &wire.Claim{}, root), wire.CodeWrongState)
	// So are commands and files before the first.
	s := guesttest.Spawn(t, guesttest.Options{})
	c := s.Open()
	c.Serve(guesttest.NewRecorder(c))
	_, err = c.Start(b.ctx, &wire.Start{ID: "x", Shell: "true"}, nil)
	b.wantCode(err, wire.CodeWrongState)
	_, err = c.Stat(b.ctx, "/", "", true, false)
	b.wantCode(err, wire.CodeWrongState)
	b.wantCode(c.OpenSession(b.ctx, &wire.OpenSession{ID: "s"}, nil), wire.CodeWrongState)
}

// TestHostileEdge: a peer that breaks the protocol loses its connection, and nobody else anything.
func TestHostileEdge(t *testing.T) {
	b := newBox(t, nil)
	frame := func(kind wire.Kind, id uint32, payload string) []byte {
		f, at := wire.Begin(nil, kind, id)
		return wire.Finish(append(f, payload...), at)
	}
	for name, bytes := range map[string][]byte{
		"no hello":   frame(wire.KindList, 1, ""),
		"garbage":    []byte(strings.Repeat("\xff", 64)),
		"zero":       make([]byte, 64),
		"huge":       {0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0},
		"bad hello":  frame(wire.KindHello, 1, "\xff"),
		"false fds":  {8, 0, 0, 0, byte(wire.KindHello), 1, 0, 0, 1, 0, 0, 0},
		"old hello":  frame(wire.KindHello, 1, "\x09\x01"),
		"reply kind": frame(wire.KindReply, 1, ""),
	} {
		nc, err := net.Dial("unix", b.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Write(bytes); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, nc); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
		nc.Close()
	}
	// Many that say nothing displace each other, not the edge.
	for range 50 {
		nc, err := net.Dial("unix", b.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	b.sh("true")
}

func TestTenThousandCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	b := newBox(t, nil)
	var early guesttest.Memory
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b.ctx = ctx
	for n := range 10000 {
		b.run(wire.Start{Shell: "echo x"})
		if n == 2000 {
			early = b.Memory(t)
		}
	}
	late := b.Memory(t)
	t.Logf("%+v, then %+v", early, late)
	if late.Anonymous > early.Anonymous+512<<10 || late.Files != early.Files || late.Threads > early.Threads+2 {
		t.Error("it grows")
	}
}

func TestManyAtOnce(t *testing.T) {
	b := newBox(t, nil)
	var ids []string
	refused := 0
	for range 1100 {
		s := wire.Start{ID: id(), Argv: []string{"sleep", "1000"}}
		if _, err := b.c.Start(b.ctx, &s, nil); code(err) == wire.CodeExhausted {
			refused++
		} else if err != nil {
			t.Fatal(err)
		} else {
			ids = append(ids, s.ID)
		}
	}
	if len(ids) != 1024 || refused != 76 {
		t.Errorf("%d started, %d refused", len(ids), refused)
	}
	l, err := b.c.List(b.ctx)
	if err != nil || len(l) != 1024 {
		t.Error(len(l), err)
	}
	t.Logf("%+v", b.Memory(t))
	for _, c := range ids {
		if err := b.c.Signal(b.ctx, c, 9, false); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range ids {
		b.wait(c)
		b.c.Release(c)
	}
	b.sh("true")
}

// TestInputAgain: input that was sent before the connection broke, answered or not, is sent again and arrives once, in
// whatever pieces; also the end.
func TestInputAgain(t *testing.T) {
	b := newBox(t, nil)
	block := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
	send := func(c string, offset int, data []byte, eof bool) error {
		return b.c.InputAt(b.ctx, &wire.Input{Command: c, Writer: "w", Offset: int64(offset), Data: data, EOF: eof})
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// It reads nothing before the file is there: the input waits in dsec-init while the connection changes.
	c := b.start(wire.Start{Shell: "until [ -e /go ]; do sleep 0.01; done; exec sha256sum", Stdin: true})
	all := append(append([]byte("first"), block...), "last"...)
	check(send(c, 0, all[:5], false))
	check(send(c, 0, all[:5], false))
	lost := make(chan error, 1)
	conn := b.c
	go func() {
		lost <- conn.InputAt(b.ctx, &wire.Input{Command: c, Writer: "w", Offset: 5, Data: block})
	}()
	b.wantCode(b.c.InputAt(b.ctx, &wire.Input{Command: c, Writer: "another", Offset: 1, Data: []byte("x")}), wire.CodeInvalid)
	b.sh("true") // meanwhile the block is on its way, or there
	b.succeed(true)
	if err := <-lost; err == nil {
		t.Fatal("the answer came, though nobody reads")
	}
	answers := make(chan error, 2)
	go func() { answers <- send(c, 5, block, false) }()
	go func() { answers <- send(c, 5, block, false) }()
	b.sh("touch /go")
	check(<-answers)
	check(<-answers)
	check(send(c, 6, all[6:6+len(block)], false)) // in other pieces, with a little more
	check(send(c, len(all)-4, []byte("last"), true))
	b.succeed(true)
	// Nothing is left to be written: the end was told, or the command has ended of it.
	if err := send(c, len(all)-4, []byte("last"), true); err != nil && code(err) != wire.CodeClosed {
		t.Fatal(err)
	}
	if res := b.wait(c); !strings.HasPrefix(string(res.All), fmt.Sprintf("%x", sha256.Sum256(all))) {
		t.Errorf("%q", res.All)
	}
	// A command that closes its stdin: what cannot arrive any more is refused for good, sent again or not.
	c = b.start(wire.Start{Shell: "exec <&-; echo closed; exec sleep 1000", Stdin: true})
	b.eventually("grep -l 'sleep' /proc/[0-9]*/comm 2>/dev/null | wc -l", "1\n")
	for range 2 {
		b.wantCode(send(c, 0, []byte("x"), false), wire.CodeClosed)
	}
}

// TestResumeCountsAsStored: a command whose buffer is full of output that the successor has already stored, and that the
// lost connection did not get to acknowledge, goes on: nothing else would ever tell dsec-init.
func TestResumeCountsAsStored(t *testing.T) {
	b := newBox(t, nil)
	b.r.Hold(true)
	const size = 1 << 20
	c := b.start(wire.Start{Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}})
	if _, err := b.r.Until(b.ctx, c, func(r *guesttest.Result) bool { return r.End >= 256<<10 }); err != nil {
		t.Fatal(err)
	}
	b.succeed(true)
	if res := b.wait(c); res.End != size || res.Exit.Code != 0 {
		t.Errorf("%d bytes, %+v", res.End, res.Exit)
	}
}
