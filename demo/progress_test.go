package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	p := newProgress(4)
	a, b, c := p.begin(), p.begin(), p.begin()
	a.next()
	a.next()
	b.next()
	c.end(false)
	if got, want := p.line(), "1 of 4 rollouts done, 2 running, 1 failed: break 1, test 1"; got != want {
		t.Errorf("line = %q, want %q", got, want)
	}
	for range stages {
		a.next()
	}
	a.end(true)
	b.end(true)
	p.begin().end(true)
	if got, want := p.line(), "4 of 4 rollouts done, 0 running, 1 failed"; got != want {
		t.Errorf("line = %q, want %q", got, want)
	}
}

func TestShowProgress(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		tick, quit, done := make(chan time.Time), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			newProgress(2).show(&out, terminal, tick, quit)
		}()
		tick <- time.Time{}
		tick <- time.Time{}
		close(quit)
		<-done
		s := out.String()
		lines, redrawn := 3, 0
		if terminal {
			lines, redrawn = 1, 3
		}
		if strings.Count(s, "\n") != lines || strings.Count(s, "\r\x1b[K") != redrawn || strings.Count(s, "0 of 2 rollouts done") != 3 {
			t.Errorf("terminal %v: %q", terminal, s)
		}
	}
}

// A file that is as it should be keeps its time, which is a part of the layer that is made of it.
func TestWriteChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	past := time.Unix(1000, 0)
	for _, c := range []struct {
		content string
		kept    bool
	}{{"a", false}, {"a", true}, {"b", false}} {
		if err := writeChanged(path, []byte(c.content)); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != c.content || st.ModTime().Equal(past) != c.kept {
			t.Errorf("%q: %q of %v, %v", c.content, b, st.ModTime(), err)
		}
		if err := os.Chtimes(path, past, past); err != nil {
			t.Fatal(err)
		}
	}
}
