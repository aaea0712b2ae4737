package fncall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/sandbox"
)

// TestCollectedBound: files that are wanted back do not make an answer that takes the worker, and so the neighbours, down.
func TestCollectedBound(t *testing.T) {
	s := newService(t)
	call(t, s, script("shell", "true"))
	pid := s.state0(t, "shell").pid
	r := script("shell", "echo first > a; for n in 1 2 3 4 5 6 7 8; do : > $n; done; truncate -s 16M 1 2 3 4 5 6 7 8; echo last > z; head -c 8000000 /dev/zero")
	r.Limits.Output = 16 << 20
	r.Collect, r.CollectBytes = []string{"a", "1", "2", "3", "4", "5", "6", "7", "8", "z"}, 16<<20
	got := call(t, s, r)
	total, names := len(got.Stdout), []string{}
	for _, f := range got.Files {
		total += len(f.Data)
		names = append(names, f.Path)
	}
	if !got.Passed() || total > cell.MaxReply || !slices.Equal(names, []string{"a", "1", "2", "3", "z"}) {
		t.Errorf("%v: %d bytes of %v", got.Failure, total, names)
	}
	if after := s.state0(t, "shell").pid; after != pid {
		t.Errorf("the worker %d ended; now %d", pid, after)
	}
}

// TestIDOfAnother: an id that stands for another call is refused, not answered with that one's result.
func TestIDOfAnother(t *testing.T) {
	s := newService(t)
	r := script("shell", "echo one")
	r.ID = "step-1"
	if got := call(t, s, r); string(got.Stdout) != "one\n" {
		t.Fatalf("%v %s", got.Failure, got.Stdout)
	}
	for name, change := range map[string]func(*Request){
		"code": func(r *Request) { r.Code = "echo two" }, "args": func(r *Request) { r.Args = []string{"x"} },
		"stdin": func(r *Request) { r.Stdin = []byte("x") }, "environment": func(r *Request) { r.Env = []string{"A=b"} },
		"limits": func(r *Request) { r.Limits.Memory = 100 << 20 }, "files": func(r *Request) { r.Files = []cell.File{{Path: "x"}} },
		"collect": func(r *Request) { r.Collect = []string{"x"} },
	} {
		other := *r
		change(&other)
		if _, err := s.Call(t.Context(), "project", &other); !errors.Is(err, sandbox.ErrAlreadyExists) || !strings.Contains(err.Error(), "new id") {
			t.Errorf("other %s: %v", name, err)
		}
	}
	if got := call(t, s, r); string(got.Stdout) != "one\n" {
		t.Errorf("the same once more: %v %s", got.Failure, got.Stdout)
	}
}

// TestRefusalsByLimits: what a compiler could not do within one's limits is not held against others.
func TestRefusalsByLimits(t *testing.T) {
	needsCompiler(t)
	s := newService(t)
	r := script("c", "char x[3 << 20] = {1}; int main(void) { return x[1]; }")
	tight := *r
	tight.Compile = Limits{FileBytes: 128 << 10}
	for range 2 {
		if got := call(t, s, &tight); !got.Compiling || got.Passed() {
			t.Fatalf("within 128 KiB: %v", got.Failure)
		}
	}
	if got := call(t, s, r); !got.Passed() {
		t.Errorf("within the usual limits: %v %s", got.Failure, got.Stderr)
	}
	if got := call(t, s, &tight); !got.Passed() {
		t.Errorf("compiled before: %v", got.Failure)
	}
}

// TestJudgeKeepsLittle: output that is not wanted back is not kept until the last case has ended.
func TestJudgeKeepsLittle(t *testing.T) {
	s := newService(t)
	sub := &Submission{Program: script("shell", "head -c 900000 /dev/zero; head -c 1000 /dev/zero >&2").Program, Show: 10, Cases: make([]Case, 5)}
	j, err := s.Judge(t.Context(), "project", sub)
	if err != nil {
		t.Fatal(err)
	}
	for n, c := range j.Cases {
		if r := c.Result; !r.Passed() || len(r.Stdout) != 10 || len(r.Stderr) != 10 || cap(r.Stdout)+cap(r.Stderr) > 128 {
			t.Errorf("case %d: %v, %d and %d bytes, room for %d", n, r.Failure, len(r.Stdout), len(r.Stderr), cap(r.Stdout)+cap(r.Stderr))
		}
	}
	sub.Show, sub.Cases = 1<<20, make([]Case, maxCases)
	if _, err := s.Judge(t.Context(), "project", sub); !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), "at most") {
		t.Errorf("2 GiB of output: %v", err)
	}
}

// TestProgramGone: a compiled program that somebody removed is made again.
func TestProgramGone(t *testing.T) {
	needsCompiler(t)
	s := newService(t)
	r := script("c", "int main(void) { return 0; }")
	for range 2 {
		if got := call(t, s, r); !got.Passed() || got.Compiled == 0 {
			t.Fatalf("%v, compiled in %v", got.Failure, got.Compiled)
		}
		for name := range s.artifacts.have {
			if err := os.Remove(filepath.Join(s.artifacts.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.artifacts.forget("never was"); len(s.artifacts.have) != 1 {
		t.Errorf("%d programs", len(s.artifacts.have))
	}
}

// TestCacheFull: where the disk has no room for a program, others make some.
func TestCacheFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("full", dir, "tmpfs", 0, "size=128k"); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	a, err := openArtifacts(dir)
	if err != nil {
		t.Fatal(err)
	}
	name := func(n int) string { return fmt.Sprintf("%064d", n) }
	for n := range 20 {
		if err := a.put(name(n), make([]byte, 30<<10)); err != nil {
			t.Fatalf("program %d: %v", n, err)
		}
	}
	if a.have[name(19)] == nil || len(a.have) > 4 || a.bytes != int64(len(a.have))*30<<10 {
		t.Errorf("%d programs, %d bytes", len(a.have), a.bytes)
	}
	var f *sandbox.Failure
	if err := a.put(name(20), make([]byte, 1<<20)); !errors.As(err, &f) || f.Kind != sandbox.KindStoreFault || f.Blame != sandbox.BlameInfra {
		t.Errorf("a program that cannot be kept: %v", err)
	}
	if _, err := openArtifacts(dir); err != nil {
		t.Errorf("a start on a full disk: %v", err)
	}
}

// TestCacheAfterBoot: programs from before the machine went down are not trusted: they were not synced.
func TestCacheAfterBoot(t *testing.T) {
	dir := t.TempDir()
	a, err := openArtifacts(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.put(strings.Repeat("a", 64), []byte("program")); err != nil {
		t.Fatal(err)
	}
	if a, err = openArtifacts(dir); err != nil || len(a.have) != 1 {
		t.Fatalf("after a restart: %v, %d programs", err, len(a.have))
	}
	if err := os.WriteFile(filepath.Join(dir, bootNote), []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if a, err = openArtifacts(dir); err != nil || len(a.have) != 0 || a.bytes != 0 {
			t.Errorf("after a boot: %v, %d programs", err, len(a.have))
		}
	}
	ents, err := os.ReadDir(dir)
	if err != nil || len(ents) != 1 {
		t.Errorf("%v, %v", ents, err)
	}
}

func TestOwnCache(t *testing.T) {
	d, err := Builtin("go")
	if err != nil {
		t.Fatal(err)
	}
	for want, image := range map[string][]string{"GOCACHE=/tmp/go-build": nil, "GOCACHE=/usr/local/go-cache": {"GOCACHE=/usr/local/go-cache"}} {
		if env := environ(d.Defaults, image, d.Env, nil); !slices.Contains(env, want) {
			t.Errorf("%v: want %s", env, want)
		}
	}
	if l := d.compileLimits(); l.CPU <= CompileLimits.CPU || l.Wall <= l.CPU || l.Memory != CompileLimits.Memory {
		t.Errorf("limits of compiling: %+v", l)
	}
}
