package edge

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

// TestNotRecorded: who asks for what cannot be recorded is told what to do where the disk is full, without clients trying again
// for minutes; and where it is something else, what.
func TestNotRecorded(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	_, err = full.Write([]byte("x"))
	err = notRecorded("record of sandbox s1", err)
	if !errors.Is(err, sandbox.ErrExhausted) || errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "make room in its state directory") {
		t.Error(err)
	}
	err = notRecorded("record of sandbox s1", os.ErrClosed)
	if !errors.Is(err, sandbox.ErrUnavailable) || !errors.Is(err, os.ErrClosed) || strings.Contains(err.Error(), "full") {
		t.Error(err)
	}
}
