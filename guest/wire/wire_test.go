package wire

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
)

type message interface {
	Append([]byte) []byte
	Decode([]byte) error
}

func samples() []message {
	return []message{
		&Hello{Version: 1, Epoch: math.MaxUint64},
		&Claim{Hostname: "h", Env: []string{"A=1", "B="}, User: "u", Workdir: "/w", NoNewPrivileges: true, ShmBytes: 1 << 40, Seed: []byte{1, 2}},
		&Start{ID: "i", Argv: []string{"a", "", "c\xff"}, Env: []string{"X=y"}, Cwd: "/", User: "1:2", Stdin: true, TimeoutMillis: 5, Columns: 65535, Rows: 1, Terminal: true, Session: "s"},
		&Start{ID: "i", Shell: "echo 'x'\n"},
		&OpenSession{ID: "s", User: "u", Cwd: "/c", Env: []string{"E=f"}},
		&OpenWrite{Path: "/p", User: "u", Mode: 0o7777, Owner: "a:b", Parents: true},
		&Path{Path: "/p", To: "/t", User: "u", Mode: 1, Depth: -1, Max: 7, Offset: math.MaxInt64, Length: -1, Follow: true, Force: true},
		&Control{Name: "c", Offset: math.MinInt64, Value: -5, Flag: true},
		&Started{PID: math.MaxInt32},
		&Exited{Name: "c", Exit: Exit{Code: 255, Signal: 9, TimedOut: true, Killed: true, OutputEnd: 1 << 50, DurationMicros: 3, SessionEnded: true}},
		&FileInfo{Path: "/f\xfe", Mode: 0o100644, UID: math.MaxUint32, GID: 7, Size: 1 << 60, MtimeNS: -1, Target: "t"},
	}
}

func TestRoundTrip(t *testing.T) {
	for _, m := range samples() {
		p := m.Append(nil)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
		if err := got.Decode(p); err != nil || !reflect.DeepEqual(m, got) {
			t.Errorf("%+v: %+v, %v", m, got, err)
		}
		// Every shorter payload, and a longer one, is refused.
		for n := range p {
			if err := got.Decode(p[:n]); err == nil {
				t.Errorf("%T: accepted %d of %d bytes", m, n, len(p))
			}
		}
		if err := got.Decode(append(p, 0)); err == nil {
			t.Errorf("%T: accepted a byte too much", m)
		}
	}
	list := []CommandStatus{{ID: "a", PID: 4, Session: "s", Ended: true, Exit: Exit{Code: 1}, Buffered: 3, End: 9}, {ID: "b"}}
	if got, err := DecodeStatuses(AppendStatuses(nil, list)); err != nil || !reflect.DeepEqual(got, list) {
		t.Error(got, err)
	}
	// Attributes come last, and only where there are any: who knows nothing of them reads the rest.
	attrs := []Attr{{"a", "\x00\xff"}, {strings.Repeat("n", MaxName), strings.Repeat("v", MaxAttrsBytes-MaxName-3)}}
	marked := FileInfo{Path: "m", Attrs: attrs}
	var again FileInfo
	if err := again.Decode(marked.Append(nil)); err != nil || !reflect.DeepEqual(marked, again) {
		t.Error(again, err)
	}
	w := OpenWrite{Path: "/p", Attrs: attrs}
	var w2 OpenWrite
	if err := w2.Decode(w.Append(nil)); err != nil || !reflect.DeepEqual(w, w2) {
		t.Error(w2, err)
	}
	for _, l := range [][]Attr{append(attrs, Attr{"b", "1"}), make([]Attr, MaxAttrs+1)} {
		if err := again.Decode((&FileInfo{Path: "m", Attrs: l}).Append(nil)); err == nil {
			t.Errorf("%d attributes beyond the bounds", len(l))
		}
	}
	marks := AppendFiles(nil, []FileInfo{{Path: "a", Attrs: attrs}, {Path: "b"}, marked}, false)
	if got, _, err := DecodeFiles(marks); err != nil || !reflect.DeepEqual(got[0].Attrs, attrs) || got[1].Attrs != nil || !reflect.DeepEqual(got[2], marked) {
		t.Error(got, err)
	}
	plain := AppendFiles(nil, []FileInfo{{Path: "a"}, {Path: "b"}, {Path: "m"}}, false)
	for _, tail := range []string{"\x03\x01\x01a\x01b", "\x01\x01\x01a\x01b\x00\x01\x01a\x01b", "\x01", "\x01\x00"} { // no such place; a place before the last; nothing there
		if _, _, err := DecodeFiles(append(plain[:len(plain):len(plain)], tail...)); err == nil {
			t.Errorf("%q was taken", tail)
		}
	}
	files := []FileInfo{{Path: "a"}, {Path: "b", Size: 2}}
	if got, cut, err := DecodeFiles(AppendFiles(nil, files, true)); err != nil || !cut || !reflect.DeepEqual(got, files) {
		t.Error(got, cut, err)
	}
	in := Input{Command: "c", EOF: true, Data: []byte("data")}
	var back Input
	if err := back.Decode(in.Append(nil)); err != nil || !reflect.DeepEqual(in, back) {
		t.Error(back, err)
	}
	out := Output{Command: "c", Offset: 7, Stream: Stderr}
	var ob Output
	if err := ob.Decode(append(out.AppendHead(nil), "xyz"...), ""); err != nil || ob.Command != "c" || ob.Offset != 7 || ob.Stream != Stderr || string(ob.Data) != "xyz" {
		t.Error(ob, err)
	}
	e := &Error{Code: CodeNoSpace, Message: "m"}
	if got := DecodeError(e.Append(nil)); *got != *e {
		t.Error(got)
	}
	long := &Error{Code: CodeInvalid, Message: strings.Repeat("x", 10000)}
	if got := DecodeError(long.Append(nil)); got.Code != CodeInvalid || len(got.Message) != MaxPath {
		t.Error(got.Code, len(got.Message))
	}
}

func TestFrames(t *testing.T) {
	f, at := Begin([]byte("before"), KindStart, 77)
	f = Finish(append(f, "payload"...), at)
	h, err := ParseHeader(f[6:])
	if err != nil || h != (Header{Kind: KindStart, ID: 77, Size: 7}) {
		t.Error(h, err)
	}
	if b := AppendHeader(nil, KindClaim, 5, 1, 3); !bytes.Equal(b, []byte{11, 0, 0, 0, byte(KindClaim), 1, 0, 0, 5, 0, 0, 0}) {
		t.Error(b)
	}
	for _, bad := range [][]byte{
		{7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0},      // shorter than a head
		{0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0, 0},   // too long
		{8, 0, 0, 0, 1, 3, 0, 0, 0, 0, 0, 0},      // too many descriptors
		{8, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0},      // reserved
		bytes.Repeat([]byte{0xff}, HeaderSize),    //
		append(make([]byte, HeaderSize), 1, 2, 3), //
	} {
		if h, err := ParseHeader(bad); err == nil {
			t.Errorf("%v: %+v", bad, h)
		}
	}
}

// FuzzDecode: whatever arrives, decoders neither panic nor hold more than a small multiple of it, and what they
// accept they write back as something that they read as the same.
func FuzzDecode(f *testing.F) {
	for k, m := range samples() {
		f.Add(uint8(k), m.Append(nil))
	}
	f.Add(uint8(0), []byte{0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, which uint8, p []byte) {
		all := samples()
		m := all[int(which)%len(all)]
		if m.Decode(p) == nil {
			again := reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
			if err := again.Decode(m.Append(nil)); err != nil || !reflect.DeepEqual(m, again) {
				t.Errorf("%+v became %+v: %v", m, again, err)
			}
		}
		_, _ = DecodeStatuses(p)
		_, _, _ = DecodeFiles(p)
		_, _ = DecodeCredit(p)
		_ = DecodeError(p)
		var in Input
		_ = in.Decode(p)
		var out Output
		_ = out.Decode(p, "x")
		if len(p) >= HeaderSize {
			if h, err := ParseHeader(p); err == nil && (h.Size < 0 || h.Size > MaxFrame) {
				t.Errorf("%+v", h)
			}
		}
	})
}
