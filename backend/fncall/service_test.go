package fncall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/sandbox"
)

// TestBadInput: what cannot be meant is refused, and says what to do.
func TestBadInput(t *testing.T) {
	s := newService(t, func(c *Config) { delete(c.Bases, "go") })
	for name, c := range map[string]struct {
		r    Request
		kind error
		say  string
	}{
		"unknown runtime":  {*script("cobol", "x"), sandbox.ErrNotFound, "there are shell"},
		"GPU":              {*script("cuda", "x"), sandbox.ErrUnsupported, "no GPU"},
		"no base":          {*script("go", "x"), sandbox.ErrFailedPrecondition, "dsec runtime set go"},
		"no code":          {*script("shell", ""), sandbox.ErrInvalid, "set code, or a file main.sh"},
		"path upwards":     {Request{Program: Program{Runtime: "shell", Code: "x", Files: []cell.File{{Path: "../x"}}}}, sandbox.ErrInvalid, "relative"},
		"absolute path":    {Request{Program: Program{Runtime: "shell", Code: "x", Files: []cell.File{{Path: "/etc/passwd"}}}}, sandbox.ErrInvalid, "relative"},
		"code twice":       {Request{Program: Program{Runtime: "shell", Code: "x", Files: []cell.File{{Path: "main.sh"}}}}, sandbox.ErrInvalid, "one of the two"},
		"environment":      {Request{Program: Program{Runtime: "shell", Code: "x"}, Env: []string{"x"}}, sandbox.ErrInvalid, "NAME=VALUE"},
		"long arguments":   {Request{Program: Program{Runtime: "shell", Code: "x"}, Args: []string{strings.Repeat("x", 10_000)}}, sandbox.ErrInvalid, "files or stdin"},
		"NUL":              {Request{Program: Program{Runtime: "shell", Code: "x"}, Args: []string{"a\x00b"}}, sandbox.ErrInvalid, "NUL"},
		"little memory":    {Request{Program: Program{Runtime: "shell", Code: "x"}, Limits: Limits{Memory: 1}}, sandbox.ErrInvalid, "want 8388608"},
		"negative limit":   {Request{Program: Program{Runtime: "shell", Code: "x"}, Limits: Limits{Pids: -1}}, sandbox.ErrInvalid, "pids"},
		"collect upwards":  {Request{Program: Program{Runtime: "shell", Code: "x"}, Collect: []string{"a/../../b"}}, sandbox.ErrInvalid, "clean"},
		"collect too much": {Request{Program: Program{Runtime: "shell", Code: "x"}, CollectBytes: 1 << 40}, sandbox.ErrInvalid, "collect_bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Call(t.Context(), "k", &c.r)
			if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.say) {
				t.Errorf("error %v, want %v that says %q", err, c.kind, c.say)
			}
		})
	}
	if _, err := s.Judge(t.Context(), "k", &Submission{Program: Program{Runtime: "shell", Code: "x"}}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a submission without cases: %v", err)
	}
	// Files that do not fit are the caller's fault, said in the result.
	r := script("shell", "x")
	r.Limits.FileBytes = 64 << 10
	r.Files = []cell.File{{Path: "big", Data: make([]byte, 1<<20)}}
	if got := call(t, s, r); got.Failure.Kind != sandbox.KindCannotStart || !strings.Contains(got.Failure.Message, "raise limits") {
		t.Errorf("files beyond the limit: %v", got.Failure)
	}
}

// TestFiles: files go in and come out, and links do not lead anywhere.
func TestFiles(t *testing.T) {
	s := newService(t)
	r := script("shell", `cat a/b/c; ls -l run.sh | cut -c1-10; ./run.sh; echo made > out; ln -s /etc/passwd link; mkfifo fifo; ln -s /etc dir; mkdir sub; echo x > sub/y; head -c 3000 /dev/zero > big`)
	r.Files = []cell.File{{Path: "a/b/c", Data: []byte("deep\n")}, {Path: "a/b/d"}, {Path: "run.sh", Data: []byte("#!/bin/sh\necho ran\n"), Mode: 0o755}}
	r.Collect, r.CollectBytes = []string{"out", "link", "fifo", "dir/passwd", "sub/y", "big", "none", "sub"}, 2000
	got := call(t, s, r)
	if string(got.Stdout) != "deep\n-rwxr-xr-x\nran\n" || got.ExitCode != 0 {
		t.Errorf("%v %s%s", got.Failure, got.Stdout, got.Stderr)
	}
	var names []string
	for _, f := range got.Files {
		names = append(names, f.Path+"="+strings.TrimSpace(string(f.Data)))
	}
	if strings.Join(names, " ") != "out=made sub/y=x" {
		t.Errorf("collected %q", names)
	}
}

// TestIDs: a call with an id is run once, also for those who ask while it runs, and each key has its own ids.
func TestIDs(t *testing.T) {
	s := newService(t)
	ask := func(key string) string {
		r := script("python", "import os; print(os.urandom(8).hex())")
		r.ID, r.Key = "same", key
		out, err := s.Call(t.Context(), "project", r)
		if err != nil {
			t.Fatal(err)
		}
		return string(out.Stdout)
	}
	var wg sync.WaitGroup
	got := make([]string, 8)
	for n := range got {
		wg.Go(func() { got[n] = ask("a") })
	}
	wg.Wait()
	for _, g := range got {
		if g != got[0] || len(g) != 17 {
			t.Fatalf("asked with one id: %q", got)
		}
	}
	if ask("a") != got[0] || ask("b") == got[0] {
		t.Error("ids are not remembered, or not by key")
	}
}

// TestCompiledOnce: the same source, compiler and flags are compiled once, also when many ask at once, and after the
// service was started again; others anew.
func TestCompiledOnce(t *testing.T) {
	needsCompiler(t)
	s := newService(t)
	r := script("c", "#include <stdio.h>\n#ifndef X\n#define X 1\n#endif\nint main(int n,char**v){printf(\"%d %d %s\\n\",X,n,v[0]);return 0;}")
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if got := call(t, s, r); string(got.Stdout) != "1 1 ./main\n" {
				t.Errorf("%v %s", got.Failure, got.Stdout)
			}
		})
	}
	wg.Wait()
	if a := s.artifacts; len(a.have) != 1 || a.bytes == 0 {
		t.Errorf("%d programs are kept", len(a.have))
	}
	flags := *r
	flags.Flags = []string{"-DX=2"}
	if got := call(t, s, &flags); string(got.Stdout) != "2 1 ./main\n" || got.Compiled == 0 {
		t.Errorf("other flags: %v %s%s", got.Failure, got.Stdout, got.Stderr)
	}
	bad := script("c", "no")
	first, second := call(t, s, bad), call(t, s, bad)
	if !first.Compiling || !second.Compiling || string(first.Stderr) != string(second.Stderr) || len(first.Stderr) == 0 {
		t.Errorf("what does not compile: %v, %v", first.Failure, second.Failure)
	}
	again, err := openArtifacts(s.artifacts.dir)
	if err != nil || len(again.have) != 2 || again.bytes != s.artifacts.bytes {
		t.Errorf("opened again: %v, %v", again, err)
	}
	for n := range again.have {
		if st, err := os.Stat(again.dir + "/" + n); err != nil || st.Mode() != 0o555 {
			t.Errorf("%v, %v", st, err)
		}
	}
}

// TestFull: more calls than may wait are refused, those that wait are served.
func TestFull(t *testing.T) {
	s := newService(t, func(c *Config) { c.Parallel, c.MaxWaiting, c.MaxPerKey = 1, 3, 3 })
	call(t, s, script("shell", "true"))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got := call(t, s, script("shell", "sleep 0.4; echo x")); string(got.Stdout) != "x\n" {
				t.Errorf("%v %s", got.Failure, got.Stdout)
			}
		})
	}
	for s.line.length() < 3 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.Call(t.Context(), "key", script("shell", "true")); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("a full line: %v", err)
	}
	// Who has nothing running needs no place in it.
	if got, err := s.Call(t.Context(), "other", script("shell", "echo other")); err != nil || string(got.Stdout) != "other\n" {
		t.Errorf("another project's: %v, %v", got, err)
	}
	wg.Wait()
	for _, r := range s.Runtimes() {
		if r.Name == "shell" && (r.Calls != 6 || r.Refused != 1 || r.Waiting != 0 || r.Cells < 2 || r.P50 == 0) {
			t.Errorf("statistics %+v", r)
		}
	}
}

// TestIdle: a runtime that nobody uses lets its worker go, and has one again with the next call. Setting its base does too.
func TestIdle(t *testing.T) {
	s := newService(t, func(c *Config) { c.Idle = 50 * time.Millisecond })
	for range 2 {
		call(t, s, script("shell", "true"))
		for s.state0(t, "shell").pid != 0 {
			time.Sleep(time.Millisecond)
		}
	}
	running := make(chan *Result)
	go func() { running <- call(t, s, script("shell", "sleep 0.3; echo ran")) }()
	for s.state0(t, "shell").users == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := s.SetBase("shell", ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if got := <-running; string(got.Stdout) != "ran\n" {
			t.Errorf("a call over the old base: %v %s", got.Failure, got.Stderr)
		}
		for left := 1; left > 0; time.Sleep(time.Millisecond) {
			s.mu.Lock()
			left = len(s.retired)
			s.mu.Unlock()
		}
	}()
	if _, err := s.Call(t.Context(), "k", script("shell", "true")); !errors.Is(err, sandbox.ErrFailedPrecondition) {
		t.Errorf("a runtime whose base was taken away: %v", err)
	}
	if err := s.SetBase("shell", "debian"); err != nil {
		t.Fatal(err)
	}
	call(t, s, script("shell", "true"))
}

// TestResizing: calls of other limits find the cells that were made for the last ones.
func TestResizing(t *testing.T) {
	s := newService(t, func(c *Config) { c.Parallel = 1 })
	for n := range 8 {
		r := script("shell", "head -c 2000000 /dev/zero > f; wc -c < f; exit 0")
		want := "2000000"
		if n%2 == 1 {
			r.Limits = Limits{FileBytes: 1 << 20, Memory: 16 << 20, Pids: 8}
			want = "1044480" // a page is the directory's
		}
		if got := call(t, s, r); strings.TrimSpace(string(got.Stdout)) != want {
			t.Errorf("call %d: %v %q %q", n, got.Failure, got.Stdout, got.Stderr)
		}
	}
}

// TestSweep: a service finds nothing of one that died.
func TestSweep(t *testing.T) {
	var cfg Config
	s := newService(t, func(c *Config) { cfg = *c })
	call(t, s, script("shell", "true"))
	second, err := New(cfg) // the first one has not closed: as after a crash, its groups and its worker are there
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := second.Call(ctx, "k", script("shell", "echo second")); err != nil || string(out.Stdout) != "second\n" {
		t.Errorf("%v, %v", out, err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
