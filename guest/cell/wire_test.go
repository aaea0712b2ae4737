package cell

import (
	"bytes"
	"reflect"
	"testing"
)

func someCall() *Call {
	return &Call{ID: 7, Argv: []string{"a", ""}, Env: []string{"X=Y"}, Stdin: []byte("in"), Program: "p", Collect: []string{"c"}, CollectBytes: 9,
		Files:  []File{{Path: "d/f", Mode: 0o755, Data: []byte("data")}, {Path: "e", Data: []byte{}}},
		Limits: Limits{CPUMicros: 1, WallMicros: 2, Memory: 3, Pids: 4, Output: 5, Files: 6, FileBytes: 1 << 40}}
}

func someReply() *Reply {
	return &Reply{ID: 8, End: Signalled, Code: -1, Signal: 9, Stdout: []byte("o"), Stderr: []byte{}, StdoutCut: true, DiskFull: true,
		CPUMicros: 10, WallMicros: 11, MemoryPeak: 12, Files: []File{{Path: "x", Mode: 1, Data: []byte("y")}}, Message: "m"}
}

// TestRoundTrip: what is written is read, and nothing that was cut is.
func TestRoundTrip(t *testing.T) {
	c, err := ParseCall(someCall().Append(nil))
	if err != nil || !reflect.DeepEqual(c, someCall()) {
		t.Errorf("call %+v, %v", c, err)
	}
	p, err := ParseReply(someReply().Append(nil))
	if err != nil || !reflect.DeepEqual(p, someReply()) {
		t.Errorf("reply %+v, %v", p, err)
	}
	cfg := &Config{Stage: "s", Layers: []Layer{{"m", "d"}}, Cache: "c", Groups: Groups{"1", "2", "3", "4"}, UIDBase: 5, Filter: []byte{6}}
	if got, err := parseConfig(cfg.Append(nil)); err != nil || !reflect.DeepEqual(got, cfg) {
		t.Errorf("config %+v, %v", got, err)
	}
	for _, b := range [][]byte{someCall().Append(nil), someReply().Append(nil)} {
		for n := range b {
			if _, err := ParseCall(b[:n]); err == nil {
				t.Errorf("a call of %d of %d bytes", n, len(b))
			}
		}
	}
	for n := range someReply().Append(nil) {
		if _, err := ParseReply(someReply().Append(nil)[:n]); err == nil {
			t.Errorf("a reply of %d bytes", n)
		}
	}
	frame := AppendFrame(nil, MsgReply, someReply().Append)
	msg, body, err := ReadFrame(bytes.NewReader(frame))
	if err != nil || msg != MsgReply || !bytes.Equal(body, someReply().Append(nil)) {
		t.Errorf("frame %d %x, %v", msg, body, err)
	}
	if _, _, err := ReadFrame(bytes.NewReader([]byte{255, 255, 255, 255, 1})); err != ErrMalformed {
		t.Errorf("an endless frame: %v", err)
	}
}

// FuzzReply: a reply is whole or an error, whatever it holds.
func FuzzReply(f *testing.F) {
	f.Add(someReply().Append(nil))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ParseReply(b)
		if err != nil {
			return
		}
		again, err := ParseReply(p.Append(nil))
		if err != nil || !reflect.DeepEqual(p, again) {
			t.Errorf("%+v is read again as %+v, %v", p, again, err)
		}
	})
}
