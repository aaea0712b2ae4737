package edge

import (
	"context"
	"fmt"
	"os"
	"slices"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/internal/failpoint"
	"github.com/opendsec/dsec/layer"
	"github.com/opendsec/dsec/sandbox"
)

// pack makes a layer of what a sandbox, or a snapshot, has changed. The last step holds the result; the layer has no
// version yet, which is the catalogue's to give.
func (e *Edge) pack(ctx context.Context, req *dsecv1.PackDiffRequest, send func(*dsecv1.PackDiffResponse) error) error {
	if e.cfg.Packer == nil {
		return fmt.Errorf("pack: %w: this edge has no importer", sandbox.ErrUnsupported)
	}
	if err := layer.CheckName(req.Name); err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	x, err := e.packed(ctx, req)
	if err != nil {
		return err
	}
	defer e.snapshots.release(x)
	last, err := e.lastPack(x, req)
	if err != nil {
		return err
	}
	if last != nil {
		defer e.snapshots.release(last)
	}
	kind, err := packKind(x, req, last != nil)
	if err != nil {
		return err
	}
	made := &dsecv1.MakeLayerRequest{Pack: &dsecv1.PackDiffRequest{
		SandboxId: x.rec.Public.SandboxId, Name: req.Name, Kind: kind, Include: req.Include, Exclude: req.Exclude,
	}}
	files, err := x.directories(made, last)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := failpoint.Hit("pack.taken"); err != nil {
		return err
	}
	result, err := e.makeLayer(ctx, made, send)
	if err != nil {
		return err
	}
	result.Report.Cost = x.rec.Public.Cost
	packs := []string{result.Layer.Digest}
	if last != nil {
		result.Report.On = last.rec.Packed[len(last.rec.Packed)-1]
		packs = append(slices.Clone(last.rec.Packed), packs...)
	}
	result.Environment = packEnvironment(x, packs)
	if req.Incremental {
		if err := e.snapshots.keepPack(x, last, packs); err != nil {
			return err
		}
	}
	return send(&dsecv1.PackDiffResponse{Result: result})
}

// packed is the snapshot that a pack is made of: the one that is named, or a new one.
func (e *Edge) packed(ctx context.Context, req *dsecv1.PackDiffRequest) (*snapshot, error) {
	if _, err := sandbox.ParseSnapshotID(req.SandboxId); err == nil {
		if req.Incremental {
			return nil, invalid("pack of snapshot %s: incremental packs are of sandboxes", req.SandboxId)
		}
		return e.snapshots.find(req.SandboxId)
	}
	b, err := e.find(req.SandboxId)
	if err != nil {
		return nil, err
	}
	return b.take(ctx, snapshotOf{pack: true})
}

// lastPack is the state of the sandbox's last incremental pack; nil = there was none, or it is not asked for.
func (e *Edge) lastPack(x *snapshot, req *dsecv1.PackDiffRequest) (*snapshot, error) {
	if !req.Incremental {
		return nil, nil
	}
	s := e.snapshots
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.m {
		if o.rec.GetPack() && o.rec.Ready && !o.rec.Deleted && o.rec.Public.SandboxId == x.rec.Public.SandboxId {
			if n := len(x.rec.Public.Layers) + len(o.rec.Packed) + 1; n > maxLayers {
				return nil, fmt.Errorf("pack of sandbox %s: %w: it has %d layers with its packs, at most %d are possible: make one that is not incremental",
					x.rec.Public.SandboxId, sandbox.ErrExhausted, n, maxLayers)
			}
			o.users++
			return o, nil
		}
	}
	return nil, nil
}

// packKind is what the layer is published as.
func packKind(x *snapshot, req *dsecv1.PackDiffRequest, more bool) (dsecv1.LayerKind, error) {
	taken := more || len(x.rec.Created.Resolved) > 1
	switch req.Kind {
	case dsecv1.LayerKind_LAYER_KIND_UNSPECIFIED:
		if taken {
			return dsecv1.LayerKind_LAYER_KIND_TOOLKIT, nil
		}
		return dsecv1.LayerKind_LAYER_KIND_WORKSPACE, nil
	case dsecv1.LayerKind_LAYER_KIND_TOOLKIT:
		return req.Kind, nil
	case dsecv1.LayerKind_LAYER_KIND_WORKSPACE:
		if taken {
			return 0, invalid("pack: the sandbox has more than its base, and its changes lie above all of that: publish them as a toolkit")
		}
		return req.Kind, nil
	}
	return 0, invalid("pack: changes are published as a workspace or a toolkit, not as a base")
}

// directories opens what the layer is made of, and names it for the packer, which is root on this machine as well.
func (x *snapshot) directories(made *dsecv1.MakeLayerRequest, last *snapshot) (files []*os.File, err error) {
	open := func(id string) (string, error) {
		f, err := x.backend.OpenSnapshot(sandbox.SnapshotID(id))
		if err != nil {
			return "", err
		}
		files = append(files, f)
		return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()), nil
	}
	chain := x.chain()
	if last != nil { // those below did not change
		chain = chain[len(chain)-1:]
		if made.Since, err = open(string(last.id)); err != nil {
			return files, err
		}
	}
	for _, id := range chain {
		path, err := open(id)
		if err != nil {
			return files, err
		}
		made.Directories = append(made.Directories, path)
	}
	return files, nil
}

// makeLayer has the packer make it.
func (e *Edge) makeLayer(ctx context.Context, made *dsecv1.MakeLayerRequest, send func(*dsecv1.PackDiffResponse) error) (*dsecv1.PackResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := func(err error) error {
		if connect.IsWireError(err) || ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("pack: %w: the importer does not answer (nothing was published); it is being restarted, try again: %w", sandbox.ErrUnavailable, err)
	}
	in, err := e.cfg.Packer.MakeLayer(ctx, made)
	if err != nil {
		return nil, failed(err)
	}
	defer in.Close()
	for in.Receive() {
		step := in.Msg().GetStep()
		if r := step.GetResult(); r.GetLayer() != nil {
			return r, nil
		}
		if err := send(step); err != nil {
			return nil, err
		}
	}
	if err := in.Err(); err != nil {
		return nil, failed(err)
	}
	return nil, failed(fmt.Errorf("it ended without a layer"))
}

// packEnvironment names what restores the state that was packed.
func packEnvironment(x *snapshot, packs []string) *dsecv1.Environment {
	return &dsecv1.Environment{Layers: append(slices.Clone(x.rec.Public.Layers), packs...)}
}

// keepPack keeps the state that was packed for the sandbox's next pack, instead of the last one.
func (s *snapshots) keepPack(x, last *snapshot, packs []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	x.rec.Pack, x.rec.Packed = true, packs
	if err := s.save(x); err != nil {
		x.rec.Pack, x.rec.Packed = false, nil
		return err
	}
	if last != nil {
		last.rec.Deleted = true
		if err := s.save(last); err != nil { // two are there, and the older one goes with the sandbox
			s.e.log.Error("forget the state of an earlier pack", "snapshot", last.id, "err", err)
		}
	}
	return nil
}
