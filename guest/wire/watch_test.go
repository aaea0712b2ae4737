package wire

import (
	"bufio"
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"
)

func TestWatchEvents(t *testing.T) {
	want := []WatchEvent{
		{Kind: WatchCreated, Dir: true, Name: "a\xff/b"}, {Kind: WatchLost}, {Kind: WatchWritten, Name: strings.Repeat("x", MaxWatchName)},
	}
	var b []byte
	for _, e := range want {
		b = e.Append(b)
	}
	r := bufio.NewReader(bytes.NewReader(b))
	for _, e := range want {
		if got, err := ReadWatchEvent(r); err != nil || !reflect.DeepEqual(got, e) {
			t.Fatalf("%+v: %+v, %v", e, got, err)
		}
	}
	if _, err := ReadWatchEvent(r); err != io.EOF {
		t.Error(err)
	}
	for _, bad := range [][]byte{{1, 1}, {2, 0, 0}, {2, byte(watchLast) + 1, 0}, {2, 1, 2}, {5, 1, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 1}, bytes.Repeat([]byte{0xff}, 11)} {
		if got, err := ReadWatchEvent(bufio.NewReader(bytes.NewReader(bad))); err == nil {
			t.Errorf("%v: %+v", bad, got)
		}
	}
}
