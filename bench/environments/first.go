package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

func init() { parts = append(parts, part{"first", firstCommand}) }

// firstCommand is the time to the first result of an image that the node has never seen, by its size.
func firstCommand(ctx context.Context, b *bench) (err error) {
	work, err := os.MkdirTemp(b.work, "first-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	debian, err := testkit.DebianBase(ctx)
	if err != nil {
		return err
	}
	r, err := b.remote(ctx, work, http.NotFoundHandler(), "--opt", "pool=1g", "--opt", "warm=8")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	sizes := []struct {
		name         string
		files, bytes int
	}{{"10mb", 400, 10 << 20}, {"1gb", 40_000, 1 << 30}}
	for _, s := range sizes {
		image, err := smallImage(debian, s.files, s.bytes)
		if err != nil {
			return err
		}
		if _, err := r.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "first-" + s.name}, bytes.NewReader(image), nil); err != nil {
			return err
		}
	}
	times := map[string][]float64{}
	for range max(b.n/3, 3) {
		for _, s := range sizes {
			r.slow.on.Store(false)
			if err := r.forget(ctx); err != nil {
				return err
			}
			r.slow.on.Store(true)
			start := time.Now()
			made, err := r.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "first-" + s.name}}})
			if err != nil {
				return err
			}
			if _, err := r.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: made[0].GetId(), OperationId: client.NewOperationID(), Command: &dsecv1.CommandSpec{Argv: []string{"true"}}}); err != nil {
				return err
			}
			times[s.name] = append(times[s.name], ms(time.Since(start)))
			if err := stopAll(ctx, r.Node, made); err != nil {
				return err
			}
		}
	}
	b.add(measure.FromValues("first_command_10mb", "ms", times["10mb"], 0))
	b.add(measure.FromValues("first_command_1gb", "ms", times["1gb"], 0), "first_command_10mb")
	return nil
}
