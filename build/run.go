package build

import (
	"context"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// stopTimeout bounds what is cleared up after a step, whatever became of it.
	stopTimeout = 30 * time.Second
	// packTimeout is what the sandbox of a step lives beyond its command.
	packTimeout = time.Hour
	label       = "dsec.build"
)

// run runs a command in a sandbox of the layers so far, and makes a layer of what it has changed.
func (b *builder) run(ctx context.Context, n int, s Step, c *instructions.RunCommand) error {
	if len(b.stack) == 0 {
		return fmt.Errorf("%w: RUN needs something to run in, and the image is empty", sandbox.ErrInvalid)
	}
	argv := b.line(c.ShellDependantCmdLine)
	env := map[string]string{}
	for k, v := range b.args {
		env[k] = v
	}
	for _, kv := range b.config.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	if env["PATH"] == "" {
		env["PATH"] = defaultPath
	}
	key := b.key("run", argv, env, b.config.User, b.config.Workdir)
	known, err := b.known(ctx, key)
	if err != nil {
		return err
	}
	b.note(n, s, known)
	if known {
		return nil
	}
	labels := map[string]string{label: b.o.Name}
	maps.Copy(labels, b.o.Labels)
	ttl := (b.o.StepTimeout + packTimeout).Seconds()
	made, err := b.o.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Layers: b.stack}, Limits: b.o.Limits, Env: env, User: b.config.User, Workdir: b.config.Workdir,
		NetworkRules: b.o.Network, TtlSeconds: &ttl, Labels: labels,
	}})
	if err != nil {
		return err
	}
	id := made[0].GetId()
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		_, _ = b.o.Client.Sandboxes.StopSandbox(last, &dsecv1.StopSandboxRequest{SandboxId: id}) // its TTL is the last resort
	}()
	timeout := b.o.StepTimeout.Seconds()
	done, err := b.o.Client.Run(ctx, client.Run{SandboxID: id, Spec: &dsecv1.CommandSpec{Argv: argv, TimeoutSeconds: &timeout}, Output: func(o *dsecv1.Output) error {
		if b.o.Output == nil {
			return nil
		}
		return b.o.Output(o.GetData())
	}})
	if err != nil {
		return err
	}
	if end := done.GetResult().GetEnd(); end.GetKind() != string(sandbox.KindExited) || done.GetResult().GetExitCode() != 0 {
		if end.GetBlame() == dsecv1.Blame_BLAME_INFRA {
			return fmt.Errorf("%w: RUN: %s: %s", sandbox.ErrUnavailable, end.GetKind(), end.GetMessage())
		}
		return fmt.Errorf("%w: the command of RUN ended with %d (%s: %s)", sandbox.ErrFailedPrecondition, done.GetResult().GetExitCode(), end.GetKind(), end.GetMessage())
	}
	return b.pack(ctx, id, key)
}

// pack makes a layer of what the sandbox has changed, and keeps it as what the step made.
func (b *builder) pack(ctx context.Context, id, key string) error {
	const kind = dsecv1.LayerKind_LAYER_KIND_TOOLKIT
	name := "build/" + strings.ToLower(client.NewOperationID())
	s, err := b.o.Client.Snapshots.PackDiff(ctx, &dsecv1.PackDiffRequest{SandboxId: id, Name: name, Kind: kind})
	if err != nil {
		return err
	}
	defer s.Close()
	var made *dsecv1.Layer
	for s.Receive() {
		if r := s.Msg().GetResult(); r != nil {
			made = r.GetLayer()
		}
	}
	if err := s.Err(); err != nil {
		return err
	}
	if made.GetDigest() == "" {
		return fmt.Errorf("pack what RUN changed: %w", io.ErrUnexpectedEOF)
	}
	// Its name was for the way: the step refers to it from here on.
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		_, _ = b.o.Client.Layers.DeleteLayer(last, &dsecv1.DeleteLayerRequest{Kind: kind, Name: name})
	}()
	if _, err := b.o.Client.Layers.PutStep(ctx, &dsecv1.PutStepRequest{Key: key, Layer: &dsecv1.Layer{
		Digest: made.Digest, MetaBytes: made.MetaBytes, DataBytes: made.DataBytes, Files: made.Files, Source: "RUN"}}); err != nil {
		return err
	}
	b.stack = append(b.stack, made.Digest)
	return nil
}
