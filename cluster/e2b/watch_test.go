package e2b

import (
	"fmt"
	"strings"
	"testing"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// TestTell: of an upload clients hear that a file was made and written where it belongs, and nothing of the temporary one.
func TestTell(t *testing.T) {
	const (
		created = dsecv1.FileEventKind_FILE_EVENT_KIND_CREATED
		written = dsecv1.FileEventKind_FILE_EVENT_KIND_WRITTEN
		chmod   = dsecv1.FileEventKind_FILE_EVENT_KIND_ATTRIBUTES
		moved   = dsecv1.FileEventKind_FILE_EVENT_KIND_MOVED
		removed = dsecv1.FileEventKind_FILE_EVENT_KIND_REMOVED
	)
	w := &watched{placed: map[string]int{}}
	var got []string
	see := func(kind dsecv1.FileEventKind, name string) {
		for _, e := range w.tell(&dsecv1.FileEvent{Kind: kind, Path: name}) {
			got = append(got, fmt.Sprintf("%s %s", strings.ToLower(strings.TrimPrefix(e.GetKind().String(), "FILE_EVENT_KIND_")), e.GetPath()))
		}
	}
	const temp, below = ".dsec-2g0dyk6bccs49.tmp", "sub/.dsec-1.tmp"
	see(created, temp)
	see(written, temp)
	see(chmod, temp)
	see(moved, temp)
	see(created, "sub/other") // of somebody else, in between
	see(created, "w.txt")
	see(created, "plain")
	see(created, below) // given up
	see(removed, below)
	see(created, "sub/x")
	see(moved, "plain")
	see(created, ".dsec-notes")
	want := "created sub/other, created w.txt, written w.txt, created plain, created sub/x, moved plain, created .dsec-notes"
	if s := strings.Join(got, ", "); s != want {
		t.Errorf("told %s\nwant %s", s, want)
	}
	if len(w.placed) > 0 {
		t.Errorf("kept: %v", w.placed)
	}
}
