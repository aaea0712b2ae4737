package main

import (
	"bytes"
	"errors"
	"testing"
)

// Errors name what others chose: such a name steers no terminal, and cannot pass for a line of ours.
func TestErrorsDoNotSteerTheTerminal(t *testing.T) {
	var b bytes.Buffer
	printError(&b, false, false, errors.New("file \x1b[31m\x9b\u009b\rx\ndsec: all is well\x00\ty"))
	if want := "dsec: file ?[31m\ufffd??x\n  dsec: all is well? y\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
