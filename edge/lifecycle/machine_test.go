package lifecycle

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// TestScripts runs testdata/*.txt: lines "TIME INPUT [ttl=D] [idle=D] [pause=D] [paused=D]", each followed by "  -> TRACE".
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var m Machine
	got := ""
	for n, sc := 1, bufio.NewScanner(f); sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "-> "):
			if want := strings.TrimPrefix(line, "-> "); got != want {
				t.Errorf("%s:%d: got %q, want %q", file, n, got, want)
			}
		default:
			now, in, err := parseLine(line)
			if err != nil {
				t.Fatalf("%s:%d: %v", file, n, err)
			}
			got = trace(&m, m.Step(in, now))
		}
	}
}

func parseLine(line string) (Now, Input, error) {
	f := strings.Fields(line)
	now, err := time.ParseDuration(f[0])
	if err != nil {
		return 0, nil, err
	}
	args := map[string]*time.Duration{}
	for _, a := range f[2:] {
		k, v, _ := strings.Cut(a, "=")
		d, err := time.ParseDuration(v)
		if err != nil {
			return 0, nil, err
		}
		args[k] = &d
	}
	get := func(k string) time.Duration {
		if d := args[k]; d != nil {
			return *d
		}
		return 0
	}
	switch f[1] {
	case "ready":
		return now, Ready{TTL: get("ttl"), Idle: get("idle"), MaxPaused: get("paused"), Pause: args["pause"] != nil}, nil
	case "failed":
		return now, Failed{sandbox.NewFailure(sandbox.KindBootFailed, "")}, nil
	case "paused":
		return now, Paused{}, nil
	case "resumed":
		return now, Resumed{}, nil
	case "pausefailed":
		return now, PauseFailed{"it did not freeze"}, nil
	case "enter":
		return now, Enter{}, nil
	case "leave":
		return now, Leave{}, nil
	case "extend":
		return now, Extend{TTL: args["ttl"], Idle: args["idle"]}, nil
	case "stop":
		return now, Stop{sandbox.NewFailure(sandbox.KindStopped, "")}, nil
	case "stopped":
		return now, Stopped{}, nil
	case "tick":
		return now, Tick{}, nil
	}
	return 0, nil, fmt.Errorf("unknown input %q", f[1])
}

func trace(m *Machine, out Output) string {
	s := string(m.State())
	if d, ok := m.Deadline(); ok {
		s += " until=" + d.String()
	}
	if m.failure != nil {
		s += " end=" + string(m.failure.Kind)
	}
	if out.Stop != nil {
		s += " STOP"
	}
	if out.Pause {
		s += " PAUSE"
	}
	if errors.Is(out.Err, sandbox.ErrFailedPrecondition) {
		s += " REFUSED"
	}
	return s
}
