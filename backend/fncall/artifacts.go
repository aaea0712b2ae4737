package fncall

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/guest/cell"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Bounds of the cache of compiled programs.
const (
	maxArtifacts     = 4096
	maxArtifactBytes = 4 << 30
	maxArtifact      = cell.MaxReply - 1<<20 // one program, in one message
	maxRefusals      = 256
	maxRefusal       = 1 << 20 // bytes of what a compiler said: longer refusals are not remembered
)

// artifacts are compiled programs, files named by what they were made from. They are written here, with what a call to the
// compiler left, and by nobody else: calls execute them under ids that may not write to them.
type artifacts struct {
	dir string

	mu       sync.Mutex
	have     map[string]*artifact
	bytes    int64
	busy     map[string]chan struct{}
	refused  map[string]*Result // what compilers refused, by name and limits
	refusals []string           // oldest first
}

type artifact struct {
	size int64
	used time.Time
}

// bootNote is the file that says which boot of the machine the programs are of.
const bootNote = "boot"

func openArtifacts(dir string) (*artifacts, error) {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return nil, err
	}
	a := &artifacts{dir: dir, have: map[string]*artifact{}, busy: map[string]chan struct{}{}, refused: map[string]*Result{}}
	ents, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	// Programs are not synced: of those from before the machine went down some may be empty.
	boot, err := linux.ReadPlain("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	note := filepath.Join(dir, bootNote)
	before, err := os.ReadFile(note)
	stale := err != nil || !bytes.Equal(before, boot)
	for _, e := range ents {
		if e.Name() == bootNote {
			continue
		}
		info, err := e.Info()
		if stale || err != nil || !info.Mode().IsRegular() || len(e.Name()) != 64 {
			_ = os.Remove(filepath.Join(dir, e.Name())) // half-made
			continue
		}
		a.have[e.Name()] = &artifact{size: info.Size(), used: info.ModTime()}
		a.bytes += info.Size()
	}
	if stale {
		_ = os.WriteFile(note, boot, 0o600) // without it, they are compiled anew after the next start too
	}
	return a, nil
}

// name of what a compiler makes of a program.
func (rt *runtimeState) artifactName(env *Environment, argv []string, files []cell.File) string {
	h := sha256.New()
	put := func(s string) { fmt.Fprintf(h, "%d:%s,", len(s), s) }
	put(rt.def.Name)
	for _, l := range [][]string{env.Digests, env.Env, argv, rt.def.Env} {
		put(fmt.Sprint(len(l)))
		for _, s := range l {
			put(s)
		}
	}
	for _, f := range files {
		put(f.Path)
		put(fmt.Sprint(f.Mode, len(f.Data)))
		_, _ = h.Write(f.Data)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// compile returns the name of the compiled program, and how long that took; or what the compiler's failure was.
func (rt *runtimeState) compile(ctx context.Context, project string, p *Program) (string, time.Duration, *Result, error) {
	limits, err := p.Compile.fill(rt.def.compileLimits())
	if err != nil {
		return "", 0, nil, fmt.Errorf("compiling: %w", err)
	}
	_, env, err := rt.take(ctx)
	if err != nil {
		return "", 0, nil, err
	}
	defer rt.give()
	argv := slices.Concat(rt.def.Compile, p.Flags, rt.def.Tail)
	files := p.sources(&rt.def)
	name := rt.artifactName(env, argv, files)
	// A compiler that had fewer processes, files or memory than others allow says nothing about the program.
	refusal := fmt.Sprint(name, *limits)
	a := rt.s.artifacts
	for {
		done, have, failed := a.begin(name, refusal)
		if have || failed != nil {
			rt.stat.cached()
			return name, 0, failed, nil
		}
		if done == nil {
			break
		}
		select { // somebody compiles the same
		case <-done:
		case <-ctx.Done():
			return "", 0, nil, ctx.Err()
		}
	}
	defer a.end(name)
	start := time.Now()
	reply, err := rt.execute(ctx, project, &cell.Call{Argv: argv, Files: files, Limits: *limits, Collect: []string{"main"}, CollectBytes: maxArtifact})
	if err != nil {
		return "", 0, nil, err
	}
	took := time.Since(start)
	if reply.End == cell.Exited && reply.Code == 0 && len(reply.Files) == 1 {
		return name, took, nil, a.put(name, reply.Files[0].Data)
	}
	failed := result(reply, limits)
	failed.Compiling, failed.Compiled, failed.Files = true, took, nil
	if failed.Passed() {
		failed.Failure = sandbox.NewFailure(sandbox.KindCannotStart, "the compiler left no program of at most %d bytes", maxArtifact)
	}
	if reply.End == cell.Exited {
		a.refuse(refusal, failed) // it would say the same again
	}
	return "", took, failed, nil
}

// begin tells whether a program is there, or what the compiler said within the same limits; else the caller is to make
// it, or to wait for done.
func (a *artifacts) begin(name, refusal string) (done chan struct{}, have bool, failed *Result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.have[name]; x != nil {
		x.used = time.Now()
		return nil, true, nil
	}
	if r := a.refused[refusal]; r != nil {
		return nil, false, r
	}
	if ch := a.busy[name]; ch != nil {
		return ch, false, nil
	}
	a.busy[name] = make(chan struct{})
	return nil, false, nil
}

func (a *artifacts) end(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.busy[name])
	delete(a.busy, name)
}

// put keeps a program. On a full disk others make room for it.
func (a *artifacts) put(name string, data []byte) error {
	err := a.write(name, data)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		a.mu.Lock()
		a.evict()
		a.mu.Unlock()
		err = a.write(name, data)
	}
	if err != nil {
		return sandbox.NewFailure(sandbox.KindStoreFault, "keep a compiled program: %v", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.have[name] = &artifact{size: int64(len(data)), used: time.Now()}
	a.bytes += int64(len(data))
	if len(a.have) > maxArtifacts || a.bytes > maxArtifactBytes {
		a.evict()
	}
	return nil
}

// forget takes a program that is not there any more off the list: somebody removed it, or it was evicted.
func (a *artifacts) forget(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.have[name]
	if x == nil {
		return
	}
	if _, err := os.Stat(filepath.Join(a.dir, name)); errors.Is(err, os.ErrNotExist) {
		a.bytes -= x.size
		delete(a.have, name)
	}
}

// write writes a program's file.
func (a *artifacts) write(name string, data []byte) error {
	tmp := filepath.Join(a.dir, name+".new")
	_ = os.Remove(tmp)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		_, err = io.Copy(f, strings.NewReader(string(data)))
		if err == nil {
			err = f.Chmod(0o555)
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
	}
	if err == nil {
		err = os.Rename(tmp, filepath.Join(a.dir, name))
	}
	if err != nil {
		_ = os.Remove(tmp)
	}
	return err
}

// evict removes the quarter that was unused for longest; a.mu is held. Programs that run keep theirs.
func (a *artifacts) evict() {
	names := make([]string, 0, len(a.have))
	for n := range a.have {
		names = append(names, n)
	}
	slices.SortFunc(names, func(x, y string) int { return a.have[x].used.Compare(a.have[y].used) })
	for _, n := range names[:min(len(names), len(names)/4+1)] {
		if len(a.have) == 1 {
			return
		}
		_ = os.Remove(filepath.Join(a.dir, n))
		a.bytes -= a.have[n].size
		delete(a.have, n)
	}
}

func (a *artifacts) refuse(refusal string, r *Result) {
	if len(r.Stdout)+len(r.Stderr) > maxRefusal {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused[refusal] = r
	if a.refusals = append(a.refusals, refusal); len(a.refusals) > maxRefusals {
		delete(a.refused, a.refusals[0])
		a.refusals = a.refusals[1:]
	}
}
