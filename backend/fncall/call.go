package fncall

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/sandbox"
)

// Program is what is compiled and run.
type Program struct {
	Runtime string
	Code    string // goes into the runtime's source file
	Files   []cell.File
	Flags   []string // for the compiler
	Compile Limits
}

// Request is one call.
type Request struct {
	ID string // chosen by the caller; asking again by it returns the same result. Empty = none
	// Key is whose the ID is: each has its own.
	Key string
	Program
	Args         []string
	Stdin        []byte
	Env          []string
	Limits       Limits
	Collect      []string // files of the working directory that are wanted back
	CollectBytes int64    // bound of each; 0 = 1 MiB
}

// Result is what came of a call. Failure says how it ended and whose doing that was; a program that exited with 0 has
// kind "exited" too.
type Result struct {
	Failure        *sandbox.Failure
	ExitCode       int
	Signal         int
	Stdout, Stderr []byte
	Cut            bool // output was lost
	CPU, Wall      time.Duration
	Memory         int64 // the most that was in use, bytes
	Files          []cell.File
	Compiling      bool          // what ended was the compiler, not the program
	Compiled       time.Duration // how long compiling took; 0 = it was in the cache, or there was nothing to compile
}

// Passed tells whether the program exited with 0.
func (r *Result) Passed() bool { return r.Failure.Kind == sandbox.KindExited && r.ExitCode == 0 }

// Bounds of a request.
const (
	maxFiles   = 4096
	maxCollect = 64
	maxBytes   = 16 << 20
)

func (p *Program) check(def *Definition) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("function call: %w: "+format, append([]any{sandbox.ErrInvalid}, args...)...)
	}
	if len(p.Files) > maxFiles {
		return bad("%d files: at most %d", len(p.Files), maxFiles)
	}
	total := len(p.Code)
	for _, f := range p.Files {
		if err := checkPath(f.Path); err != nil {
			return bad("%v", err)
		}
		if f.Path == def.Source && p.Code != "" {
			return bad("file %s is where the code goes: give one of the two", f.Path)
		}
		total += len(f.Data)
	}
	if total > maxBytes {
		return bad("%d bytes of code and files: at most %d", total, maxBytes)
	}
	if p.Code == "" && !slices.ContainsFunc(p.Files, func(f cell.File) bool { return f.Path == def.Source }) {
		return bad("there is no code: set code, or a file %s", def.Source)
	}
	return nil
}

// checkPath wants a clean relative path.
func checkPath(p string) error {
	if p == "" || len(p) > 1024 || p[0] == '/' || path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsRune(p, 0) {
		return fmt.Errorf("path %.80q: want a clean path relative to the working directory", p)
	}
	return nil
}

func (r *Request) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("function call: %w: "+format, append([]any{sandbox.ErrInvalid}, args...)...)
	}
	size := 0
	for _, l := range [][]string{r.Args, r.Env, r.Flags} {
		for _, s := range l {
			size += len(s) + 9
			if strings.ContainsRune(s, 0) {
				return bad("arguments must not contain NUL")
			}
		}
	}
	for _, s := range r.Env {
		if name, _, ok := strings.Cut(s, "="); !ok || name == "" {
			return bad("environment entry %.40q: want NAME=VALUE", s)
		}
	}
	switch {
	case size > cell.MaxArgs/2:
		return bad("arguments and environment of %d bytes: at most %d; larger data goes into files or stdin", size, cell.MaxArgs/2)
	case len(r.Stdin) > maxBytes:
		return bad("stdin of %d bytes: at most %d", len(r.Stdin), maxBytes)
	case len(r.Collect) > maxCollect:
		return bad("%d files to collect: at most %d", len(r.Collect), maxCollect)
	case r.CollectBytes < 0 || r.CollectBytes > maxBytes:
		return bad("collect_bytes %d: want 0 to %d", r.CollectBytes, maxBytes)
	case len(r.ID) > 128:
		return bad("an id of %d bytes: at most 128", len(r.ID))
	}
	for _, c := range r.Collect {
		if err := checkPath(c); err != nil {
			return bad("%v", err)
		}
	}
	return nil
}

// sources are the program's files, the code among them.
func (p *Program) sources(def *Definition) []cell.File {
	if p.Code == "" {
		return p.Files
	}
	return append([]cell.File{{Path: def.Source, Data: []byte(p.Code)}}, p.Files...)
}

// Call runs one call for a project: compiles it, where that is needed and not in the cache, and runs it. Errors are for
// calls that were not run: ErrInvalid, ErrNotFound, ErrUnsupported, ErrFailedPrecondition, ErrAlreadyExists (the id stands for another call), ErrExhausted (try again
// later), the context's; everything else is in the result.
func (s *Service) Call(ctx context.Context, project string, r *Request) (*Result, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	rt, err := s.state(r.Runtime)
	if err != nil {
		return nil, err
	}
	if err := r.Program.check(&rt.def); err != nil {
		return nil, err
	}
	limits, err := r.Limits.fill(DefaultLimits)
	if err != nil {
		return nil, fmt.Errorf("function call: %w", err)
	}
	if r.ID == "" {
		return rt.run(ctx, project, r, limits)
	}
	return s.recent.do(ctx, r.Key+"/"+r.ID, r.digest(limits), func(ctx context.Context) (*Result, error) { return rt.run(ctx, project, r, limits) })
}

// digest stands for what is asked for.
func (r *Request) digest(limits *cell.Limits) [sha256.Size]byte {
	h := sha256.New()
	put := func(s string) { fmt.Fprintf(h, "%d:%s,", len(s), s) }
	for _, s := range []string{r.Runtime, r.Code, string(r.Stdin), fmt.Sprint(*limits, r.Compile, r.CollectBytes)} {
		put(s)
	}
	for _, l := range [][]string{r.Flags, r.Args, r.Env, r.Collect} {
		put(fmt.Sprint(len(l)))
		for _, s := range l {
			put(s)
		}
	}
	for _, f := range r.Files {
		put(f.Path)
		put(fmt.Sprint(f.Mode))
		put(string(f.Data))
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (rt *runtimeState) run(ctx context.Context, project string, r *Request, limits *cell.Limits) (*Result, error) {
	c := &cell.Call{Stdin: r.Stdin, Env: r.Env, Limits: *limits, Collect: r.Collect, CollectBytes: r.CollectBytes}
	if c.CollectBytes == 0 {
		c.CollectBytes = 1 << 20
	}
	if len(rt.def.Compile) == 0 {
		c.Argv = append(slices.Clone(rt.def.Run), r.Args...)
		c.Files = r.sources(&rt.def)
		p, err := rt.execute(ctx, project, c)
		if err != nil {
			return infra(err)
		}
		return result(p, limits), nil
	}
	var took time.Duration
	for again := false; ; again = true {
		name, made, failed, err := rt.compile(ctx, project, &r.Program)
		if err != nil {
			return infra(err)
		}
		if failed != nil {
			return failed, nil
		}
		took += made
		c.Program, c.Argv, c.Files = name, append([]string{"./main"}, r.Args...), r.Files
		p, err := rt.execute(ctx, project, c)
		if err != nil {
			return infra(err)
		}
		if p.End == cell.NoProgram && !again { // evicted while it waited in line, or somebody removed it
			rt.s.artifacts.forget(name)
			continue
		}
		out := result(p, limits)
		out.Compiled = took
		return out, nil
	}
}

// infra makes a result of what is the platform's fault: a caller gets the call's end, not an error without blame.
func infra(err error) (*Result, error) {
	var f *sandbox.Failure
	if errors.As(err, &f) {
		return &Result{Failure: f}, nil
	}
	return nil, err
}

func result(p *cell.Reply, l *cell.Limits) *Result {
	return &Result{
		Failure: toFailure(p, l), ExitCode: int(p.Code), Signal: int(p.Signal), Stdout: p.Stdout, Stderr: p.Stderr,
		Cut: p.StdoutCut || p.StderrCut, CPU: time.Duration(p.CPUMicros) * time.Microsecond,
		Wall: time.Duration(p.WallMicros) * time.Microsecond, Memory: p.MemoryPeak, Files: p.Files,
	}
}
