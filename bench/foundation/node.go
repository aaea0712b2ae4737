package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

// node is the node under measurement.
type node struct {
	*testkit.Node
	state string
	warm  int
	bases []string // the Debian base, then small distinct ones
	stops stopping
}

func debianBase(ctx context.Context) (string, error) { return testkit.DebianBase(ctx) }

func startNode(ctx context.Context, o options, state string) (*node, error) {
	n, err := testkit.StartNode(ctx, o.dsec, state, "--opt", "warm="+strconv.Itoa(o.warm))
	if err != nil {
		return nil, err
	}
	return &node{Node: n, state: state, warm: o.warm}, nil
}

// stop ends the node, after what is still being stopped.
func (n *node) stop() ([]string, error) {
	err := n.stops.wait()
	left, serr := n.Stop()
	return left, errors.Join(err, serr)
}

// distinct is how many images of their own kind are made.
const distinct = 40

// importBases brings in the Debian base and small images that share nothing with each other by name or digest:
// the program and its libraries out of the Debian tree, and a file of their own.
func (n *node) importBases(ctx context.Context, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := n.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "bench-debian"}, f, nil); err != nil {
		return err
	}
	n.bases = []string{"bench-debian"}
	again, err := os.Open(path) // the upload has closed f
	if err != nil {
		return err
	}
	defer again.Close()
	small, err := smallTree(again)
	if err != nil {
		return err
	}
	for i := range distinct {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		own := fmt.Sprintf("image %d\n", i)
		if err := tw.WriteHeader(&tar.Header{Name: "own", Mode: 0o644, Size: int64(len(own))}); err != nil {
			return err
		}
		if _, err := io.WriteString(tw, own); err != nil {
			return err
		}
		if err := tw.Flush(); err != nil {
			return err
		}
		buf.Write(small)
		name := fmt.Sprintf("bench-small-%d", i)
		if _, err := n.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: name}, &buf, nil); err != nil {
			return err
		}
		n.bases = append(n.bases, name)
	}
	return nil
}

// smallTree copies out of a Debian tar what /bin/true needs, as a tar.
func smallTree(r io.Reader) ([]byte, error) {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			return buf.Bytes(), tw.Close()
		}
		if err != nil {
			return nil, err
		}
		name := strings.TrimPrefix(strings.TrimSuffix(h.Name, "/"), "./")
		base := filepath.Base(name)
		top := !strings.Contains(name, "/") && (h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeDir)
		lib := strings.HasPrefix(base, "libc.so.") || strings.HasPrefix(base, "ld-linux") || strings.HasPrefix(base, "libc-") || strings.HasPrefix(base, "ld-")
		if !top && !(lib && h.Typeflag != tar.TypeDir) && name != "usr/bin/true" && name != "bin/true" && name != "etc/passwd" {
			continue
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return nil, err
		}
	}
}

func (n *node) createMany(ctx context.Context, base string, count int) ([]string, error) {
	ttl := 3600.0
	boxes, err := n.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: int32(count), Spec: &dsecv1.SandboxSpec{
		Environment: &dsecv1.Environment{Base: base},
		Limits:      &dsecv1.Limits{MemoryBytes: 256 << 20, CpuMillis: 1000, Pids: 128, DiskBytes: 64 << 20, ShmBytes: 16 << 20},
		Labels:      map[string]string{"job": "bench"},
		TtlSeconds:  &ttl,
	}})
	ids := make([]string, len(boxes))
	for i, b := range boxes {
		ids[i] = b.GetId()
	}
	return ids, err
}

func (n *node) create(ctx context.Context, base string) (string, error) {
	ids, err := n.createMany(ctx, base, 1)
	if err != nil {
		return "", err
	}
	return ids[0], nil
}

func (n *node) exec(ctx context.Context, id string) error {
	resp, err := n.Client.Commands.Exec(ctx, &dsecv1.ExecRequest{SandboxId: id, OperationId: client.NewOperationID(),
		Command: &dsecv1.CommandSpec{Argv: []string{program}}})
	if err != nil {
		return err
	}
	if res := resp.GetCommand().GetResult(); res.GetEnd().GetKind() != "exited" || res.GetExitCode() != 0 {
		return fmt.Errorf("%s: %s, exit code %d", program, res.GetEnd().GetKind(), res.GetExitCode())
	}
	return nil
}

func (n *node) stopSandbox(ctx context.Context, id string) error {
	_, err := n.Client.Sandboxes.StopSandbox(ctx, &dsecv1.StopSandboxRequest{SandboxId: id})
	return err
}

// createAndRun is the figure's unit: create, first command's result. The sandbox is stopped afterwards, outside
// of the figure but inside of the run.
func (n *node) createAndRun(bases []string) func(context.Context, int) error {
	return func(ctx context.Context, i int) error {
		id, err := n.create(ctx, bases[i%len(bases)])
		if err != nil {
			return err
		}
		err = n.exec(ctx, id)
		n.stops.begin(func() error { return n.stopSandbox(context.WithoutCancel(ctx), id) })
		return err
	}
}

func (n *node) stopAll(ctx context.Context) error {
	_, err := n.Client.Sandboxes.StopSandboxes(ctx, &dsecv1.StopSandboxesRequest{Labels: map[string]string{"job": "bench"}})
	return err
}

func (n *node) stages(ctx context.Context) ([]*dsecv1.StageCost, error) {
	r, err := n.Client.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
	return r.GetStages(), err
}

// settle waits until all that was stopped is gone, and the pool of warm shells is full and stays so.
func (n *node) settle(ctx context.Context) error {
	if err := n.stops.wait(); err != nil {
		return fmt.Errorf("stop a sandbox: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	calm := 0
	for calm < 5 {
		r, err := n.Client.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
		if err != nil {
			return fmt.Errorf("wait for a calm node: %w", err)
		}
		if int(r.GetWarmShells()) >= n.warm {
			calm++
		} else {
			calm = 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for a calm node: %d warm shells of %d: %w", r.GetWarmShells(), n.warm, ctx.Err())
		}
	}
	return nil
}

// initMemory is the mean PSS of all dsec-init processes of the node, MiB.
func (n *node) initMemory() (float64, error) {
	procs, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	var sum, count float64
	for _, p := range procs {
		exe, err := os.Readlink(p)
		if err != nil || !strings.HasPrefix(exe, n.state+"/run/dsec-init") {
			continue
		}
		b, err := os.ReadFile(filepath.Dir(p) + "/smaps_rollup")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) >= 2 && f[0] == "Pss:" {
				kb, _ := strconv.ParseFloat(f[1], 64)
				sum += kb / 1024
				count++
			}
		}
	}
	return sum / max(count, 1), nil
}
