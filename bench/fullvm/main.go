package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/backend/fullvm/fullvmtest"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

// bench is a run.
type bench struct {
	dsec, out, disk string
	n, boots        int
	node            *testkit.Node
	rows            []measure.Row
}

func main() {
	b := &bench{}
	flag.StringVar(&b.dsec, "dsec", "bin/dsec", "the dsec binary")
	flag.StringVar(&b.out, "out", "bench/out/fullvm.json", "where the rows go")
	flag.StringVar(&b.disk, "disk", "", "a disk whose system has an agent (hack/debian-vm.sh); none = its rows are left out")
	flag.IntVar(&b.n, "n", 30, "pictures, keys and clicks")
	flag.IntVar(&b.boots, "boots", 5, "creations of each figure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	err := b.run(ctx)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func (b *bench) run(ctx context.Context) (err error) {
	work, err := os.MkdirTemp(testkit.Cache(), "bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if b.node, err = testkit.StartNode(ctx, b.dsec, filepath.Join(work, "node"), "--opt", "pool=2g", "--opt", "warm=1", "--opt", "fullvm=on"); err != nil {
		return err
	}
	defer func() {
		left, serr := b.node.Stop()
		if err == nil {
			err = serr
		}
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind: %q", left)
		}
	}()
	up := client.Upload{Kind: "base", Name: "echo", Format: "disk"}
	if _, err := b.node.Client.UploadLayer(ctx, up, bytes.NewReader(fullvmtest.Echo("ready")), nil); err != nil {
		return err
	}
	if err := errors.Join(b.first(ctx, "fullvm_cold_boot", "fullvm_first_screenshot", "echo", small, 4<<20, b.boots), b.screen(ctx), b.agent(ctx)); err != nil {
		return err
	}
	if err := measure.Print(os.Stdout, b.rows); err != nil {
		return err
	}
	return measure.Save(b.out, b.rows)
}

// create makes a machine of a base, with so much memory and disk, bytes.
func (b *bench) create(ctx context.Context, base string, memory, disk int64) (string, error) {
	ttl, patience := 3600.0, 900.0
	boxes, err := b.node.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: base}, Backend: dsecv1.Backend_BACKEND_FULLVM,
		Limits:     &dsecv1.Limits{MemoryBytes: memory, CpuMillis: 2000, DiskBytes: disk},
		TtlSeconds: &ttl, CreateTimeoutSeconds: &patience,
	}})
	if err != nil {
		return "", err
	}
	return boxes[0].GetId(), nil
}

func (b *bench) stop(ctx context.Context, id string) error {
	_, err := b.node.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return err
}

// times measures f, n times one after the other.
func (b *bench) times(ctx context.Context, name string, n int, f func() error) error {
	fmt.Fprintln(os.Stderr, "measuring", name)
	times, failures, first := measure.Times(ctx, n, 1, func(context.Context, int) error { return f() })
	if len(times) == 0 {
		return fmt.Errorf("%s: %w", name, first)
	}
	b.rows = append(b.rows, measure.FromDurations(name, times, failures))
	return nil
}

const small = 64 << 20

// first measures machines up to their first picture: of a base, and of a snapshot of one of those.
func (b *bench) first(ctx context.Context, cold, saved, base string, memory, disk int64, n int) error {
	var made []string
	picture := func(id string, err error) error {
		if err != nil {
			return err
		}
		made = append(made, id)
		_, err = b.node.Client.Screens.TakeScreenshot(ctx, &dsecv1.TakeScreenshotRequest{SandboxId: id})
		return err
	}
	clear := func(all []string) (err error) {
		for _, id := range all {
			err = errors.Join(err, b.stop(ctx, id))
		}
		return err
	}
	if err := b.times(ctx, cold, n, func() error {
		err := picture(b.create(ctx, base, memory, disk))
		if last := len(made) - 1; last > 0 { // one at a time
			err = errors.Join(err, clear(made[:last]))
			made = made[last:]
		}
		return err
	}); err != nil {
		return err
	}
	begin := time.Now()
	shot, err := b.node.Client.Snapshots.CreateSnapshot(ctx, &dsecv1.CreateSnapshotRequest{SandboxId: made[0]})
	if err != nil {
		return errors.Join(err, clear(made))
	}
	b.rows = append(b.rows, measure.FromDurations(strings.Replace(saved, "_first_screenshot", "_snapshot", 1), []time.Duration{time.Since(begin)}, 0))
	id := shot.GetSnapshot().GetId()
	err = b.times(ctx, saved, n, func() error {
		err := picture(b.from(ctx, id))
		if last := len(made) - 1; last > 0 {
			err = errors.Join(err, clear(made[last:]))
			made = made[:last]
		}
		return err
	})
	err = errors.Join(err, clear(made))
	if _, derr := b.node.Client.Snapshots.DeleteSnapshot(ctx, &dsecv1.DeleteSnapshotRequest{SnapshotId: id}); err == nil {
		err = derr
	}
	if err == nil {
		b.rows[len(b.rows)-1].Ratio(b.rows[len(b.rows)-3])
	}
	return err
}

// from makes a machine that goes on from a snapshot.
func (b *bench) from(ctx context.Context, snapshot string) (string, error) {
	boxes, err := b.node.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: 1, Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Snapshot: snapshot}, TtlSeconds: proto.Float64(3600), CreateTimeoutSeconds: proto.Float64(900),
	}})
	if err != nil {
		return "", err
	}
	return boxes[0].GetId(), nil
}

// screen measures what is done to a screen.
func (b *bench) screen(ctx context.Context) error {
	id, err := b.create(ctx, "echo", small, 4<<20)
	if err != nil {
		return err
	}
	s := b.node.Client.Screens
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{"fullvm_screenshot", func() error {
			_, err := s.TakeScreenshot(ctx, &dsecv1.TakeScreenshotRequest{SandboxId: id})
			return err
		}},
		{"fullvm_key", func() error {
			_, err := s.TypeText(ctx, &dsecv1.TypeTextRequest{SandboxId: id, Text: "a"})
			return err
		}},
		{"fullvm_click", func() error {
			_, err := s.ClickPointer(ctx, &dsecv1.ClickPointerRequest{SandboxId: id, X: proto.Int32(10), Y: proto.Int32(10)})
			return err
		}},
	} {
		err = errors.Join(err, b.times(ctx, part.name, b.n, part.do))
	}
	return errors.Join(err, b.stop(ctx, id))
}

// agent measures a whole system: up to its first command's result, and a command.
func (b *bench) agent(ctx context.Context) error {
	if b.disk == "" {
		return nil
	}
	f, err := os.Open(b.disk)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := b.node.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "system", Format: "disk", Agent: true}, f, nil); err != nil {
		return err
	}
	if err := b.first(ctx, "fullvm_system_cold_boot", "fullvm_system_first_screenshot", "system", 512<<20, st.Size(), min(b.boots, 3)); err != nil {
		return err
	}
	command := func(id string) error {
		r, err := b.node.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
			Command: &dsecv1.CommandSpec{Argv: []string{"/bin/true"}}})
		if err == nil && r.GetCommand().GetResult().GetExitCode() != 0 {
			err = fmt.Errorf("exit code %d", r.GetCommand().GetResult().GetExitCode())
		}
		return err
	}
	last := ""
	err = b.times(ctx, "fullvm_system_first_result", min(b.boots, 3), func() error {
		if last != "" {
			if err := b.stop(ctx, last); err != nil {
				return err
			}
		}
		var err error
		if last, err = b.create(ctx, "system", 512<<20, st.Size()); err != nil {
			return err
		}
		return command(last)
	})
	if last == "" {
		return err
	}
	err = errors.Join(err, b.times(ctx, "fullvm_command", b.n, func() error { return command(last) }))
	return errors.Join(err, b.stop(ctx, last))
}
