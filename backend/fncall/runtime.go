package fncall

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/sandbox"
)

// Definition says how submissions of a runtime are compiled and run.
type Definition struct {
	Name string
	Base string // a base of the catalogue, NAME or NAME@VERSION
	// Source is the file that the code is put into.
	Source string
	// Compile is the compiler's command; it makes the file "main". Empty = there is nothing to compile.
	Compile []string
	// Tail are the compiler's arguments behind those of the submission.
	Tail []string
	// Run is the command; empty = the compiled program itself.
	Run []string
	Env []string
	// Defaults are variables that the base's own go before.
	Defaults []string
	// Limits of compiling, where they are others than CompileLimits.
	Limits Limits
}

// compileLimits are the defaults of compiling.
func (d *Definition) compileLimits() Limits {
	l := CompileLimits
	if d.Limits.CPU != 0 {
		l.CPU, l.Wall = d.Limits.CPU, d.Limits.Wall
	}
	return l
}

// builtin are the definitions that operators need not write: they only say over which base.
var builtin = []Definition{
	{Name: "shell", Source: "main.sh", Run: []string{"sh", "main.sh"}},
	{Name: "python", Source: "main.py", Run: []string{"python3", "main.py"}},
	{Name: "node", Source: "main.js", Run: []string{"node", "main.js"}},
	{Name: "c", Source: "main.c", Compile: []string{"gcc", "-O2", "-o", "main", "main.c"}, Tail: []string{"-lm"}},
	{Name: "cpp", Source: "main.cpp", Compile: []string{"g++", "-O2", "-o", "main", "main.cpp"}, Tail: []string{"-lm"}},
	{Name: "go", Source: "main.go", Compile: []string{"go", "build", "-o", "main"}, Tail: []string{"main.go"},
		Env: []string{"GO111MODULE=off", "CGO_ENABLED=0", "GOTELEMETRY=off", "GOTOOLCHAIN=local"},
		// A Go of today comes without a compiled library. Bases that bring one say so with a GOCACHE of their own, read-only;
		// in others each program compiles what it imports.
		Defaults: []string{"GOCACHE=/tmp/go-build"}, Limits: Limits{CPU: 2 * time.Minute, Wall: 4 * time.Minute}},
}

// gpu matches runtimes that would need a GPU, which calls do not have.
var gpu = regexp.MustCompile(`(?i)^(cuda|gpu|rocm|triton|opencl|nvidia)`)

// Builtin returns the definition of a runtime, without a base. Errors: sandbox.ErrUnsupported for GPU runtimes,
// sandbox.ErrNotFound.
func Builtin(name string) (Definition, error) {
	for _, d := range builtin {
		if d.Name == name {
			return d, nil
		}
	}
	if gpu.MatchString(name) {
		return Definition{}, fmt.Errorf("runtime %.40q: %w: function calls have no GPU yet", name, sandbox.ErrUnsupported)
	}
	return Definition{}, fmt.Errorf("runtime %.40q: %w: there are %s", name, sandbox.ErrNotFound, strings.Join(names(), ", "))
}

func names() []string {
	var l []string
	for _, d := range builtin {
		l = append(l, d.Name)
	}
	return l
}

// ParseBases reads "python=IMAGE,c=IMAGE" or one IMAGE for all runtimes. Error: sandbox.ErrInvalid.
func ParseBases(text string) (map[string]string, error) {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		name, base, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok && name != "" {
			for _, n := range names() {
				if out[n] == "" {
					out[n] = name
				}
			}
			continue
		}
		if !slices.Contains(names(), name) || base == "" {
			return nil, fmt.Errorf("%q: %w: want RUNTIME=BASE,... with the runtimes %s, or one BASE for all", part, sandbox.ErrInvalid, strings.Join(names(), ", "))
		}
		out[name] = base
	}
	return out, nil
}

// Environment is a base, resolved.
type Environment struct {
	Layers  []cell.Layer // bottom to top
	Digests []string     // of the layers
	Env     []string     // the image's own
}

// Resolve finds a base of the catalogue. Errors: sandbox.ErrNotFound, ErrUnavailable.
type Resolve func(ctx context.Context, base string) (*Environment, error)

// Limits of a call. A zero field has the default.
type Limits struct {
	CPU, Wall        time.Duration
	Memory           int64 // bytes
	Pids             int64
	Output           int64 // bytes of each of stdout and stderr
	Files, FileBytes int64
}

// Defaults and bounds of limits.
var (
	DefaultLimits = Limits{CPU: 10 * time.Second, Wall: 20 * time.Second, Memory: 256 << 20, Pids: 64, Output: 1 << 20, Files: 256, FileBytes: 64 << 20}
	// CompileLimits are the defaults of compiling.
	CompileLimits = Limits{CPU: 30 * time.Second, Wall: 60 * time.Second, Memory: 1 << 30, Pids: 128, Output: 256 << 10, Files: 8192, FileBytes: 512 << 20}
	minLimits     = Limits{CPU: time.Millisecond, Wall: time.Millisecond, Memory: 8 << 20, Pids: 1, Output: 0, Files: 8, FileBytes: 64 << 10}
	maxLimits     = Limits{CPU: 10 * time.Minute, Wall: 20 * time.Minute, Memory: 16 << 30, Pids: 4096, Output: 16 << 20, Files: 65536, FileBytes: 4 << 30}
)

// fill checks limits and gives what is missing its default. Error: sandbox.ErrInvalid.
func (l Limits) fill(d Limits) (*cell.Limits, error) {
	if l.Wall == 0 && l.CPU != 0 {
		l.Wall = max(d.Wall, min(2*l.CPU, maxLimits.Wall)) // a busy machine must not make a time limit of it
	}
	out := &cell.Limits{}
	for _, f := range []struct {
		name           string
		v, def, lo, hi int64
		unit           string
		to             *int64
		div            int64
	}{
		{name: "cpu", v: int64(l.CPU), def: int64(d.CPU), lo: int64(minLimits.CPU), hi: int64(maxLimits.CPU), to: &out.CPUMicros, div: 1000, unit: "ns"},
		{name: "wall", v: int64(l.Wall), def: int64(d.Wall), lo: int64(minLimits.Wall), hi: int64(maxLimits.Wall), to: &out.WallMicros, div: 1000, unit: "ns"},
		{name: "memory", v: l.Memory, def: d.Memory, lo: minLimits.Memory, hi: maxLimits.Memory, to: &out.Memory, div: 1, unit: "bytes"},
		{name: "pids", v: l.Pids, def: d.Pids, lo: minLimits.Pids, hi: maxLimits.Pids, to: &out.Pids, div: 1, unit: "processes"},
		{name: "output", v: l.Output, def: d.Output, lo: minLimits.Output, hi: maxLimits.Output, to: &out.Output, div: 1, unit: "bytes"},
		{name: "files", v: l.Files, def: d.Files, lo: minLimits.Files, hi: maxLimits.Files, to: &out.Files, div: 1, unit: "files"},
		{name: "file_bytes", v: l.FileBytes, def: d.FileBytes, lo: minLimits.FileBytes, hi: maxLimits.FileBytes, to: &out.FileBytes, div: 1, unit: "bytes"},
	} {
		if f.v == 0 {
			f.v = f.def
		}
		if f.v < f.lo || f.v > f.hi {
			return nil, fmt.Errorf("limit %s of %d %s: %w: want %d to %d", f.name, f.v, f.unit, sandbox.ErrInvalid, f.lo, f.hi)
		}
		*f.to = f.v / f.div
	}
	return out, nil
}
