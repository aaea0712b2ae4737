package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
)

// subject is one program that is called.
type subject struct {
	name, runtime, code string
	argv                []string // for floors and peers, in /work of the root
	file                string
}

var subjects = []subject{
	{"shell", "shell", "echo hello\n", []string{"/bin/sh", "main.sh"}, "main.sh"},
	{"python", "python", "print('hello')\n", []string{"/usr/bin/python3", "main.py"}, "main.py"},
	{"c", "c", "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n", []string{"./hello"}, "hello"},
}

// calls measures each subject at 1 and 8 at once: as a call, as fork+exec, and under the peers.
func (b *bench) calls(ctx context.Context) error {
	dir := filepath.Join(b.root, "work")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, s := range subjects {
		if err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.code), 0o755); err != nil {
			return err
		}
	}
	// The same compiler and flags as the runtime's.
	if err := os.WriteFile(filepath.Join(dir, "hello.c"), []byte(subjects[2].code), 0o644); err != nil {
		return err
	}
	if err := command(ctx, "chroot", b.root, "sh", "-c", "cd /work && gcc -O2 -o hello hello.c"); err != nil {
		return err
	}
	if err := limits(); err != nil {
		return err
	}
	for _, s := range subjects {
		peers, err := b.peers(ctx, &s)
		if err != nil {
			return err
		}
		for _, at := range []int{1, 8} {
			if err := b.measure(ctx, &s, at, peers); err != nil {
				return err
			}
		}
	}
	return b.batch(ctx)
}

// limits puts this process, and so the floors, under a call's limits. That of CPU time costs an exec nothing, and would
// end this process.
func limits() error {
	for what, v := range map[int]uint64{syscall.RLIMIT_CORE: 0, syscall.RLIMIT_FSIZE: 64 << 20, syscall.RLIMIT_STACK: 256 << 20, syscall.RLIMIT_NOFILE: 1024} {
		if err := syscall.Setrlimit(what, &syscall.Rlimit{Cur: v, Max: v}); err != nil {
			return fmt.Errorf("limit resources: %w", err)
		}
	}
	return nil
}

func (b *bench) call(ctx context.Context, s *subject) error {
	r, err := b.c.Call(ctx, &dsecv1.CallRequest{Call: &dsecv1.CallSpec{Program: &dsecv1.Program{Runtime: s.runtime, Code: s.code}}})
	if err != nil {
		return err
	}
	if string(r.GetStdout()) != "hello\n" {
		return fmt.Errorf("call of %s: %v: %q %q", s.name, r.GetEnd(), r.GetStdout(), r.GetStderr())
	}
	return nil
}

func (b *bench) forkExec(_ context.Context, s *subject) error {
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Dir, cmd.SysProcAttr = "/work", &syscall.SysProcAttr{Chroot: b.root, Setsid: true}
	out, err := cmd.Output()
	if err == nil && string(out) != "hello\n" {
		err = fmt.Errorf("fork+exec of %s: %q", s.name, out)
	}
	return err
}

// peer is another way to run a subject isolated.
type peer struct {
	name string
	run  func(ctx context.Context) error
}

func (b *bench) measure(ctx context.Context, s *subject, at int, peers []peer) error {
	floor, err := b.times(ctx, fmt.Sprintf("forkexec_%s_%d", s.name, at), b.o.n, at, func(ctx context.Context) error { return b.forkExec(ctx, s) })
	if err != nil {
		return err
	}
	for range 2 * at { // the first ones compile, and make cells
		if err := b.call(ctx, s); err != nil {
			return err
		}
	}
	ours, err := b.times(ctx, fmt.Sprintf("fncall_%s_%d", s.name, at), b.o.n, at, func(ctx context.Context) error { return b.call(ctx, s) })
	if err != nil {
		return err
	}
	rows := []pair{floor, ours}
	for _, p := range peers {
		r, err := b.times(ctx, fmt.Sprintf("%s_%s_%d", p.name, s.name, at), max(b.o.n/8, 2*at), at, p.run)
		if err != nil {
			return err
		}
		rows = append(rows, r)
	}
	for _, r := range rows {
		ours.time.Ratio(r.time)
		ours.rate.Ratio(r.rate)
	}
	delete(ours.time.Ratios, ours.time.Name)
	delete(ours.rate.Ratios, ours.rate.Name)
	rows[1] = ours
	for _, r := range rows {
		b.rows = append(b.rows, r.time, r.rate)
	}
	return nil
}

// pair are latency and throughput of one thing.
type pair struct{ time, rate measure.Row }

func (b *bench) times(ctx context.Context, name string, n, at int, f func(ctx context.Context) error) (pair, error) {
	start := time.Now()
	times, failures, err := measure.Times(ctx, n, at, func(ctx context.Context, _ int) error { return f(ctx) })
	if len(times) == 0 || ctx.Err() != nil {
		return pair{}, errors.Join(fmt.Errorf("%s: nothing was measured", name), err)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %d failures, the first: %v\n", name, failures, err)
	}
	rate := float64(len(times)) / time.Since(start).Seconds()
	return pair{measure.FromDurations(name, times, failures), measure.FromValues(name+"_rate", "1/s", []float64{rate}, failures)}, nil
}

// batch measures how many calls a second a batch comes to.
func (b *bench) batch(ctx context.Context) error {
	for _, s := range subjects {
		calls := make([]*dsecv1.CallRequest, 2*b.o.n)
		for k := range calls {
			calls[k] = &dsecv1.CallRequest{Call: &dsecv1.CallSpec{Program: &dsecv1.Program{Runtime: s.runtime, Code: s.code}}}
		}
		bad := 0
		start := time.Now()
		err := b.c.CallBatch(ctx, calls, func(_ int, r *dsecv1.CallResult, err error) {
			if err != nil || string(r.GetStdout()) != "hello\n" {
				bad++
			}
		})
		if err != nil {
			return err
		}
		row := measure.FromValues("fncall_"+s.name+"_batch_rate", "1/s", []float64{float64(len(calls)) / time.Since(start).Seconds()}, bad)
		for _, r := range b.rows {
			if r.Name == "forkexec_"+s.name+"_8_rate" {
				row.Ratio(r)
			}
		}
		b.rows = append(b.rows, row)
	}
	return nil
}

// peers are those that are installed.
func (b *bench) peers(ctx context.Context, s *subject) ([]peer, error) {
	var out []peer
	if _, err := exec.LookPath("bwrap"); err == nil {
		out = append(out, peer{"bwrap", func(ctx context.Context) error {
			return command(ctx, "bwrap", append([]string{"--ro-bind", b.root, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all",
				"--chdir", "/work"}, s.argv...)...)
		}})
	}
	if _, err := exec.LookPath("runc"); err == nil {
		bundle := filepath.Join(b.work, "bundle-"+s.name)
		if err := writeBundle(ctx, bundle, b.root, s.argv); err != nil {
			return nil, err
		}
		var n atomic.Int64
		out = append(out, peer{"runc", func(ctx context.Context) error {
			return command(ctx, "runc", "--root", filepath.Join(b.work, "runc"), "run", "-b", bundle, fmt.Sprintf("call-%s-%d-%d", s.name, os.Getpid(), n.Add(1)))
		}})
	}
	return out, nil
}

// writeBundle makes an OCI bundle that runs argv over the root file system, read-only, without a terminal.
func writeBundle(ctx context.Context, dir, root string, argv []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := command(ctx, "runc", "spec", "-b", dir); err != nil {
		return err
	}
	path := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(raw, &spec); err != nil {
		return err
	}
	spec["root"] = map[string]any{"path": root, "readonly": true}
	proc, ok := spec["process"].(map[string]any)
	if !ok {
		return errors.New("runc spec: no process")
	}
	proc["terminal"], proc["args"], proc["cwd"] = false, argv, "/work"
	delete(proc, "rlimits") // the default asks for more than this machine may give
	if raw, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(path, raw, 0o644)
}

// command runs a program; its output is in the error.
func command(ctx context.Context, name string, args ...string) error {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, 5*time.Second
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %.300s", name, err, strings.TrimSpace(out.String()))
	}
	return nil
}
