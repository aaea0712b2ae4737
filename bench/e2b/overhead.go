package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
)

// argv is what both run: the shell as the packages start it, without a shell's start-up files, which would be most of it.
var argv = []string{"/bin/bash", "-c", "true"}

const fileSize = 1 << 20

// contest is one thing done through our own API and through the door.
type contest struct {
	name      string
	own, door func(ctx context.Context) error
}

// overhead measures both ways in turn, so that what else the machine does falls on both.
func (b *bench) overhead(ctx context.Context) error {
	ours, err := b.create(ctx)
	if err != nil {
		return err
	}
	theirs, err := b.door.create(ctx)
	if err != nil {
		return err
	}
	content := bytes.Repeat([]byte("0123456789abcdef"), fileSize/16)
	path := "/tmp/bench"
	for _, c := range []contest{
		{"exec", func(ctx context.Context) error { return b.exec(ctx, ours) }, func(ctx context.Context) error { return b.door.exec(ctx, theirs, argv) }},
		{"write_1mb",
			func(ctx context.Context) error {
				return b.own.WriteFile(ctx, ours, path, client.WriteOptions{Parents: true}, bytes.NewReader(content))
			},
			func(ctx context.Context) error {
				_, err := b.door.file(ctx, "POST", theirs, path, content)
				return err
			}},
		{"read_1mb",
			func(ctx context.Context) error {
				r, err := b.own.ReadFile(ctx, ours, path, "", 0, 0)
				if err != nil {
					return err
				}
				got, err := io.ReadAll(r)
				return errors.Join(err, r.Close(), same(got, content))
			},
			func(ctx context.Context) error {
				got, err := b.door.file(ctx, "GET", theirs, path, nil)
				return errors.Join(err, same(got, content))
			}},
	} {
		if err := b.contest(ctx, c, func(context.Context) error { return nil }); err != nil {
			return err
		}
	}
	if err := errors.Join(b.stop(ctx, ours), b.door.kill(ctx, theirs)); err != nil {
		return err
	}
	// What was made is ended outside of the times, before the next one is made.
	var mine string
	var other box
	return b.contest(ctx, contest{"create",
		func(ctx context.Context) (err error) { mine, err = b.create(ctx); return err },
		func(ctx context.Context) (err error) { other, err = b.door.create(ctx); return err },
	}, func(ctx context.Context) error {
		id, o := mine, other
		mine, other = "", box{}
		if id != "" {
			return b.stop(ctx, id)
		}
		return b.door.kill(ctx, o)
	})
}

// contest adds a row of each side. after is called after each run, outside of its time.
func (b *bench) contest(ctx context.Context, c contest, after func(context.Context) error) error {
	names := []string{c.name, "e2b_" + c.name}
	sides := []func(context.Context) error{c.own, c.door}
	times := make([][]time.Duration, 2)
	failures := make([]int, 2)
	const warmUp = 5
	for i := range b.o.n + warmUp {
		for k := range sides {
			side := (i + k) % 2 // who goes first takes turns, too
			start := time.Now()
			err := sides[side](ctx)
			took := time.Since(start)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case err != nil:
				if failures[side]++; failures[side] == 1 {
					fmt.Fprintf(os.Stderr, "%s: the first failure: %v\n", names[side], err)
				}
				continue
			case i >= warmUp:
				times[side] = append(times[side], took)
			}
			if err := after(ctx); err != nil {
				return fmt.Errorf("after %s: %w", names[side], err)
			}
		}
	}
	own := measure.FromDurations(names[0], times[0], failures[0])
	door := measure.FromDurations(names[1], times[1], failures[1])
	door.Ratio(own)
	b.rows = append(b.rows, own, door)
	return nil
}

func same(got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes came back that are not the %d that were written", len(got), len(want))
	}
	return nil
}

func (b *bench) create(ctx context.Context) (string, error) {
	boxes, err := b.own.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Name: template}}})
	if err != nil {
		return "", err
	}
	return boxes[0].GetId(), nil
}

func (b *bench) stop(ctx context.Context, id string) error {
	_, err := b.own.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return err
}

func (b *bench) exec(ctx context.Context, id string) error {
	cmd, err := b.own.Run(ctx, client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Argv: argv}})
	if err != nil {
		return err
	}
	if r := cmd.GetResult(); r.GetEnd().GetKind() != "exited" || r.GetExitCode() != 0 {
		return fmt.Errorf("the command ended with %v", r)
	}
	return nil
}
