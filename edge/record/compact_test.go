package record

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/guest/wire"
)

func TestCompactionBoundsTheRecord(t *testing.T) {
	opt := testOptions()
	opt.Total = 256 << 10
	l, dir := create(t, opt)
	created := &Entry{Body: &Entry_Created{Created: &Created{BootId: "b"}}}
	if err := l.Append(created); err != nil {
		t.Fatal(err)
	}
	live := start(t, l, "live")
	if _, err := l.Output(live, 0, wire.Stdout, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	compactions, line := 0, bytes.Repeat([]byte("0123456789abcdef"), 256)
	for i := range 1000 {
		order := start(t, l, fmt.Sprint("op", i))
		if _, err := l.Output(order, 0, wire.Stdout, line); err != nil {
			t.Fatal(err)
		}
		end(t, l, order)
		if l.Full() {
			compactions++
			if err := l.Compact(created, &Checkpoint{}); err != nil {
				t.Fatal(err)
			}
		}
		if l.Usage() > opt.Total*3/2 {
			t.Fatalf("record of %d bytes after %d commands", l.Usage(), i)
		}
	}
	if compactions < 10 || compactions > 200 {
		t.Errorf("%d compactions", compactions)
	}
	check := func() {
		t.Helper()
		if got := all(t, l, live, 0, 100); got != "still here" {
			t.Errorf("live output %q", got)
		}
		if got := all(t, l, 1001, 0, 1<<20); got != string(line) {
			t.Errorf("newest output: %d bytes", len(got))
		}
		orders, forgotten := l.Orders(0)
		if int64(len(orders))+forgotten != 1001 || len(orders) < 100 {
			t.Errorf("kept %d, forgot %d", len(orders), forgotten)
		}
		withoutOutput := 0
		for _, o := range orders {
			if c, err := l.Command(o); err != nil || c.OperationId == "" {
				t.Errorf("command %d: %v, %v", o, c, err)
			}
			if got := all(t, l, o, 0, 1<<20); strings.Count(got, "0") == 0 {
				withoutOutput++
			}
		}
		if withoutOutput == 0 || withoutOutput == len(orders) {
			t.Errorf("%d of %d without output", withoutOutput, len(orders))
		}
	}
	check()
	l, _ = reopen(t, l, dir, opt)
	check()
}

// TestRecordMatchesModel drives a record through starts, output, ends, compactions and reopenings, and
// compares with what was written.
func TestRecordMatchesModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		opt := testOptions()
		opt.Head = int64(rapid.IntRange(1, 200).Draw(rt, "head"))
		opt.Tail = int64(rapid.IntRange(1, 200).Draw(rt, "tail"))
		opt.Total = 1 << 20
		l, dir := create(t, opt)
		written, running := map[int64][]byte{}, []int64{}
		created := &Entry{Body: &Entry_Created{Created: &Created{}}}
		if err := l.Append(created); err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"start", "out", "out", "out", "end", "compact", "reopen"}).Draw(rt, "do") {
			case "start":
				order := start(t, l, "")
				running, written[order] = append(running, order), nil
			case "out":
				if len(running) > 0 {
					o := rapid.SampledFrom(running).Draw(rt, "command")
					data := bytes.Repeat([]byte{byte('a' + len(written[o])%26)}, rapid.IntRange(1, 300).Draw(rt, "n"))
					stream := rapid.SampledFrom([]Stream{wire.Stdout, wire.Stderr}).Draw(rt, "stream")
					back := min(len(written[o]), rapid.IntRange(0, 20).Draw(rt, "again"))
					offset := len(written[o]) - back
					again := append(bytes.Clone(written[o][offset:]), data...)
					written[o] = append(written[o], data...)
					if end, err := l.Output(o, int64(offset), stream, again); err != nil || end != int64(len(written[o])) {
						rt.Fatalf("end %d, want %d: %v", end, len(written[o]), err)
					}
				}
			case "end":
				if len(running) > 0 {
					end(t, l, running[0])
					running = running[1:]
				}
			case "compact":
				if err := l.Compact(created, &Checkpoint{}); err != nil {
					rt.Fatal(err)
				}
			case "reopen":
				l, _ = reopen(t, l, dir, opt)
			}
		}
		for o, want := range written {
			got := all(t, l, o, 0, rapid.IntRange(1, 1000).Draw(rt, "max"))
			if len(got) != len(want) {
				rt.Fatalf("command %d: %d bytes, want %d", o, len(got), len(want))
			}
			for i := range want {
				if got[i] != '?' && got[i] != want[i] {
					rt.Fatalf("command %d: byte %d is %q, want %q", o, i, got[i], want[i])
				}
			}
			if int64(len(want)) <= opt.Head+opt.Tail && strings.Contains(got, "?") {
				rt.Fatalf("command %d: %d bytes are below the bound but cut: %q", o, len(want), got)
			}
		}
	})
}

func FuzzOpen(f *testing.F) {
	b, _ := appendEntry(nil, &Entry{Body: &Entry_CommandStarted{CommandStarted: &dsecv1.Command{Order: 1}}})
	f.Add(appendOutput(b, 1, 0, wire.Stdout, []byte("hi")))
	f.Fuzz(func(t *testing.T, journal []byte) {
		l, dir := create(t, testOptions())
		if _, err := l.f.WriteAt(journal, 0); err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		l, _, err := Open(dir, testOptions(), func(*Entry) error { return nil })
		if err != nil {
			return
		}
		defer l.Close()
		orders, _ := l.Orders(0)
		for _, o := range orders {
			_, _ = l.Command(o)
			_, _ = l.Reader(o, 0).Read(1 << 16)
		}
	})
}

// TestNotesAreBounded: notes alone are dropped too, while a command runs that never ends and keeps what it said.
func TestNotesAreBounded(t *testing.T) {
	opt := testOptions()
	opt.Total = 64 << 10
	l, dir := create(t, opt)
	created := &Entry{Body: &Entry_Created{Created: &Created{BootId: "b"}}}
	if err := l.Append(created); err != nil {
		t.Fatal(err)
	}
	live := start(t, l, "live")
	if _, err := l.Output(live, 0, wire.Stdout, []byte("still here")); err != nil {
		t.Fatal(err)
	}
	compactions := 0
	note := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if err := l.Append(&Entry{Body: &Entry_Note{Note: &Note{Type: "network_denied", Message: strings.Repeat("x", 200)}}}); err != nil {
				t.Fatal(err)
			}
			if l.Full() {
				compactions++
				if err := l.Compact(created, &Checkpoint{}); err != nil {
					t.Fatal(err)
				}
			}
			if l.Usage() > opt.Total*3/2 {
				t.Fatalf("record of %d bytes after %d notes", l.Usage(), i)
			}
		}
	}
	note(0, 2000)
	if compactions < 2 || compactions > 20 {
		t.Errorf("%d compactions", compactions)
	}
	// What a record that is opened again holds of them counts.
	note(2000, 2200)
	l, _ = reopen(t, l, dir, opt)
	note(2200, 4000)
	if got := all(t, l, live, 0, 100); got != "still here" {
		t.Errorf("live output %q", got)
	}
}
