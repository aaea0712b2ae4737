package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestWriters sends what two writers have to say in pieces, each of them several times and with any beginning that was
// sent before: what is taken is what each said, once.
func TestWriters(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var w Writers
		said := map[string][]byte{"a": nil, "b": nil}
		took := map[string][]byte{}
		for range 30 {
			name := []string{"a", "b"}[rng.IntN(2)]
			from := rng.IntN(len(said[name]) + 1)
			piece := fmt.Appendf(nil, "%s%d.", name, rng.IntN(1000))
			said[name] = append(said[name], piece...)
			m := &Input{Command: "c", Writer: name, Offset: int64(from), Data: said[name][from:]}
			for range 1 + rng.IntN(3) {
				data, _, err := w.Fresh(m)
				if err != nil {
					t.Fatal(err)
				}
				took[name] = append(took[name], data...)
				w.Took(m)
			}
		}
		for name := range said {
			if !bytes.Equal(said[name], took[name]) {
				t.Fatalf("%s said %q, taken was %q", name, said[name], took[name])
			}
		}
	}
}

func TestWritersEnd(t *testing.T) {
	var w Writers
	step := func(m Input, want string, repeated bool) {
		t.Helper()
		data, rep, err := w.Fresh(&m)
		if err != nil || string(data) != want || rep != repeated {
			t.Errorf("%+v: %q, %v, %v", m, data, rep, err)
		}
		w.Took(&m)
	}
	step(Input{Writer: "a", Data: []byte("one")}, "one", false)
	step(Input{Writer: "a", Data: []byte("one")}, "", true)
	step(Input{Data: []byte("one")}, "one", false)
	step(Input{Data: []byte("one")}, "one", false)                      // nobody says that it is the same
	step(Input{Writer: "a", Data: []byte("one"), EOF: true}, "", false) // the end is new
	step(Input{Writer: "a", Data: []byte("one"), EOF: true}, "", true)  // and was told
	step(Input{Writer: "a", Offset: 3, EOF: true}, "", true)            // in other words too
	step(Input{Writer: "b", EOF: true}, "", false)                      // of another writer: it is refused, not repeated
	if _, _, err := w.Fresh(&Input{Writer: "a", Offset: 4}); err == nil {
		t.Error("a gap is accepted")
	}
	for i := range MaxWriters {
		step(Input{Writer: fmt.Sprint(i), Data: []byte("x")}, "x", false)
	}
	if _, _, err := w.Fresh(&Input{Writer: "a", Offset: 3, Data: []byte("more")}); err == nil || len(w.list) != MaxWriters {
		t.Errorf("a forgotten writer goes on: %v, %d are kept", err, len(w.list))
	}
}

func TestInputRoundTrip(t *testing.T) {
	for _, in := range []Input{
		{Command: "c", Data: []byte("data")},
		{Command: "c", EOF: true, Data: []byte{}},
		{Command: "c", Writer: "w", Data: []byte("data")},
		{Command: "c", Writer: "w", Offset: 1 << 60, EOF: true, Data: []byte("data")},
	} {
		p := in.Append(nil)
		var back Input
		if err := back.Decode(p); err != nil || !reflect.DeepEqual(in, back) {
			t.Errorf("%+v: %+v, %v", in, back, err)
		}
	}
	// Without a writer it is what earlier versions said and understood.
	if p := (&Input{Command: "c", EOF: true, Data: []byte("d")}).Append(nil); !bytes.Equal(p, []byte("\x01c\x01d")) {
		t.Errorf("%q", p)
	}
	for _, p := range []string{"\x01c\x04d", "\x01c\x02", "\x01c\x02\x00\x00", "\x01c\x02\x01w"} {
		var m Input
		if err := m.Decode([]byte(p)); err == nil {
			t.Errorf("%q is %+v", p, m)
		}
	}
}
