package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
)

// box is a sandbox under the agent's loop.
type box struct {
	c  *client.Client
	id string
}

// maxKept bounds what is kept of a command's output.
const maxKept = 1 << 20

// quick runs a program that ends at once.
func (b *box) quick(ctx context.Context, argv ...string) error {
	resp, err := b.c.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: b.id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Argv: argv, Cwd: projectDir}})
	if err != nil {
		return err
	}
	return judge(resp.GetCommand(), 0, argv[0], append(resp.GetStdout(), resp.GetStderr()...))
}

// exec runs a program in the project's directory, for as long as it makes progress, and returns its stdout; an exit code
// other than want is an error with the output.
func (b *box) exec(ctx context.Context, want int32, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var stdout, all []byte
	var spoke atomic.Bool
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := b.watch(ctx, &spoke); err != nil {
			cancel(fmt.Errorf("%s hangs: %w", argv[0], err))
		}
	}()
	cmd, err := b.c.Run(ctx, client.Run{SandboxID: b.id, Spec: &dsecv1.CommandSpec{Argv: argv, Cwd: projectDir},
		Output: func(o *dsecv1.Output) error {
			spoke.Store(true)
			if o.GetStream() == dsecv1.Stream_STREAM_STDOUT && len(stdout) < maxKept {
				stdout = append(stdout, o.GetData()...)
			}
			if all = append(all, o.GetData()...); len(all) > maxKept {
				all = tail(all)
			}
			return nil
		}})
	cancel(nil)
	<-watched
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, tail(all))
	}
	return stdout, judge(cmd, want, argv[0], all)
}

// watchEvery is how often a command's progress is looked at.
const watchEvery = 5 * time.Second

// watch returns why the running command has hung, or nil when ctx is done.
func (b *box) watch(ctx context.Context, spoke *atomic.Bool) error {
	var p *patience
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		st, err := b.c.Sandboxes.GetSandboxStats(ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: b.id})
		if err != nil {
			continue // Run says what is wrong with the sandbox
		}
		cpu := time.Duration(st.GetStats().GetCpuUsageUsec()) * time.Microsecond
		if p == nil {
			p = newPatience(time.Now(), cpu)
		}
		if err := p.step(time.Now(), cpu, spoke.Swap(false)); err != nil {
			return err
		}
	}
}

func judge(c *dsecv1.Command, want int32, name string, output []byte) error {
	if res := c.GetResult(); res.GetEnd().GetKind() != "exited" || res.GetExitCode() != want {
		return fmt.Errorf("%s: %s, exit code %d, want %d: %s", name, res.GetEnd().GetKind(), res.GetExitCode(), want, tail(output))
	}
	return nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-1200):] }

// edit applies the agent's edit through the file API.
func (b *box) edit(ctx context.Context, e *edit) error {
	path := projectDir + "/" + e.File
	f, err := b.c.ReadFile(ctx, b.id, path, "", 0, -1)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	if e.Line < 1 || e.Line > len(lines) || e.Column < 0 || e.Column > len(lines[e.Line-1]) ||
		!bytes.HasPrefix(lines[e.Line-1][e.Column:], []byte(e.Old)) {
		return errors.New("the place is not as the agent said")
	}
	l := lines[e.Line-1]
	lines[e.Line-1] = append(append(append([]byte{}, l[:e.Column]...), e.New...), l[e.Column+len(e.Old):]...)
	return b.c.WriteFile(ctx, b.id, path, client.WriteOptions{}, bytes.NewReader(bytes.Join(lines, nil)))
}
