package record

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/guest/wire"
)

func testOptions() Options {
	return Options{Clock: func() (time.Time, time.Duration) { return time.Unix(1e9, 0), time.Second }}
}

func create(t testing.TB, opt Options) (*Log, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "box")
	l, err := Create(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, dir
}

func reopen(t testing.TB, l *Log, dir string, opt Options) (*Log, []*Entry) {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var entries []*Entry
	l, _, err := Open(dir, opt, func(e *Entry) error { entries = append(entries, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, entries
}

func start(t testing.TB, l *Log, op string) int64 {
	t.Helper()
	c := &dsecv1.Command{OperationId: op, Spec: &dsecv1.CommandSpec{Shell: "run " + op}}
	if _, err := l.StartCommand(c); err != nil {
		t.Fatal(err)
	}
	return c.Order
}

func end(t testing.TB, l *Log, order int64) *dsecv1.Command {
	t.Helper()
	c := &dsecv1.Command{Order: order, Id: CommandID(order), Pid: 7, Result: &dsecv1.CommandResult{ExitCode: 3, OutputBytes: l.OutputEnd(order)}}
	if _, err := l.EndCommand(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// all reads everything from an offset on; cut bytes become '?'.
func all(t testing.TB, l *Log, order, from int64, max int) string {
	t.Helper()
	var out bytes.Buffer
	r := l.Reader(order, from)
	next := from
	for {
		list, err := r.Read(max)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			out.WriteString(strings.Repeat("?", int(r.Offset()-next)))
			return out.String()
		}
		for _, p := range list {
			out.WriteString(strings.Repeat("?", int(p.Offset-next)))
			out.Write(p.Data)
			next = p.Offset + int64(len(p.Data))
		}
	}
}

func TestCommandsSurviveReopening(t *testing.T) {
	l, dir := create(t, testOptions())
	if err := l.Append(&Entry{Body: &Entry_Created{Created: &Created{BootId: "b"}}}); err != nil {
		t.Fatal(err)
	}
	a, b := start(t, l, "op-a"), start(t, l, "op-b")
	for _, s := range []string{"hello ", "world\n"} {
		if _, err := l.Output(a, l.OutputEnd(a), wire.Stdout, []byte(s)); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Output(b, l.OutputEnd(b), wire.Stderr, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	want := end(t, l, a)
	if want.Result.OutputBytes != 12 || want.Result.OutputCutBytes != 0 {
		t.Errorf("result %v", want.Result)
	}
	l, entries := reopen(t, l, dir, testOptions())
	if len(entries) != 4 || entries[3].Sequence != 4 {
		t.Fatalf("entries %v", entries)
	}
	if got := all(t, l, a, 0, 5); got != "hello world\n" {
		t.Errorf("output of a: %q", got)
	}
	if got := all(t, l, a, 8, 100); got != "rld\n" {
		t.Errorf("output of a from 8: %q", got)
	}
	if l.Operation("op-a") != a || l.Operation("op-b") != b || l.Operation("none") != 0 {
		t.Error("operation ids are lost")
	}
	got, err := l.Command(a)
	if err != nil || !proto.Equal(got.Result, want.Result) || got.Spec.Shell != "run op-a" || got.Pid != 7 {
		t.Errorf("command a: %v, %v", got, err)
	}
	if got, err := l.Command(b); err != nil || got.Result != nil {
		t.Errorf("command b: %v, %v", got, err)
	}
	// What was recorded before is left out.
	if end, err := l.Output(b, 1, wire.Stderr, []byte("xyz")); err != nil || end != 4 {
		t.Errorf("repeated output ends at %d, %v", end, err)
	}
	if got := all(t, l, b, 0, 100); got != "xxyz" {
		t.Errorf("output of b: %q", got)
	}
	if _, err := l.Output(a, 12, wire.Stdout, []byte("late")); !errors.Is(err, ErrUnknownCommand) {
		t.Errorf("output after the end: %v", err)
	}
}

func TestTornEndIsCutOff(t *testing.T) {
	l, dir := create(t, testOptions())
	order := start(t, l, "op")
	if _, err := l.Output(order, 0, wire.Stdout, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	size := l.size
	if _, err := l.Output(order, 5, wire.Stdout, []byte("torn")); err != nil {
		t.Fatal(err)
	}
	full := l.size
	_ = l.Close()
	journal := filepath.Join(dir, journalName)
	whole, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	for n := size; n < full; n++ {
		if err := os.WriteFile(journal, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		l, torn, err := Open(dir, testOptions(), func(*Entry) error { return nil })
		if err != nil || torn != n-size {
			t.Fatalf("cut at %d: torn %d, %v", n, torn, err)
		}
		if got := all(t, l, order, 0, 100); got != "whole" {
			t.Fatalf("cut at %d: output %q", n, got)
		}
		if _, err := l.Output(order, 5, wire.Stdout, []byte(" again")); err != nil {
			t.Fatal(err)
		}
		if got := all(t, l, order, 0, 100); got != "whole again" {
			t.Fatalf("cut at %d: output %q", n, got)
		}
		_ = l.Close()
	}
}

func TestHeadAndTailAreKept(t *testing.T) {
	opt := testOptions()
	opt.Head, opt.Tail = 100, 300
	l, dir := create(t, opt)
	order := start(t, l, "yes")
	var want []byte
	for i := range 1000 {
		line := fmt.Appendf(nil, "line %04d\n", i)
		if _, err := l.Output(order, int64(len(want)), wire.Stdout, line); err != nil {
			t.Fatal(err)
		}
		want = append(want, line...)
		check := func(l *Log) {
			got := all(t, l, order, 0, 64)
			kept := len(got) - strings.Count(got, "?")
			if len(got) != len(want) || got[:min(100, len(got))] != string(want[:min(100, len(want))]) ||
				got[max(0, len(got)-300):] != string(want[max(0, len(want)-300):]) || kept > 100+600+20 {
				t.Fatalf("after %d bytes: kept %d: %q", len(want), kept, got)
			}
			if len(want) <= 400 && kept != len(want) {
				t.Fatalf("%d bytes are below the bound, kept %d", len(want), kept)
			}
		}
		if i%50 == 3 {
			check(l)
			l, _ = reopen(t, l, dir, opt)
			check(l)
		}
	}
	c := end(t, l, order)
	got := all(t, l, order, 0, 1<<20)
	if c.Result.OutputBytes != 10000 || c.Result.OutputCutBytes != int64(strings.Count(got, "?")) {
		t.Errorf("result %v, cut %d", c.Result, strings.Count(got, "?"))
	}
	if got := all(t, l, order, 5000, 1<<20); !strings.HasPrefix(got, "?") || len(got) != 5000 {
		t.Errorf("from within the cut: %d bytes", len(got))
	}
}

func TestOldCommandsAreForgotten(t *testing.T) {
	opt := testOptions()
	opt.Keep, opt.Head, opt.Tail = 10, 10, 10
	l, dir := create(t, opt)
	for i := range 100 {
		order := start(t, l, fmt.Sprint("op", i))
		if _, err := l.Output(order, 0, wire.Stdout, []byte("more than ten bytes")); err != nil {
			t.Fatal(err)
		}
		end(t, l, order)
	}
	check := func() {
		t.Helper()
		orders, forgotten := l.Orders(0)
		if len(orders) != 10 || orders[0] != 91 || forgotten != 90 {
			t.Errorf("kept %v, forgot %d", orders, forgotten)
		}
		if files, _ := os.ReadDir(filepath.Join(dir, "out")); len(files) != 10 {
			t.Errorf("%d segment files", len(files))
		}
		if _, err := l.Command(1); !errors.Is(err, ErrUnknownCommand) || !strings.Contains(err.Error(), "only the last 10") {
			t.Errorf("command 1: %v", err)
		}
	}
	check()
	l, _ = reopen(t, l, dir, opt)
	check()
}

// TestDamageIsNotATear: damage with whole frames behind it is told from a torn end, for what follows it is lost.
func TestDamageIsNotATear(t *testing.T) {
	l, dir := create(t, testOptions())
	order := start(t, l, "op")
	at := l.size
	for i := range int64(3) {
		if _, err := l.Output(order, 5*i, wire.Stdout, []byte("whole")); err != nil {
			t.Fatal(err)
		}
	}
	_ = l.Close()
	journal := filepath.Join(dir, journalName)
	whole, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range []int64{0, at / 2, at, at + 1, at + 3, at + headerSize, at + headerSize + 5} {
		bad := bytes.Clone(whole)
		bad[i] ^= 0x55
		if err := os.WriteFile(journal, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Open(dir, testOptions(), func(*Entry) error { return nil }); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d of %d changed: %v", i, len(whole), err)
		}
	}
	l, err = Renew(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	start(t, l, "again")
	_ = l.Close()
	l, torn, err := Open(dir, testOptions(), func(*Entry) error { return nil })
	if err != nil || torn != 0 || l.Operation("again") != 1 {
		t.Errorf("renewed: %d, %v", torn, err)
	}
	_ = l.Remove()
}
