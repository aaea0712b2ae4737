package e2b

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

type snapshotView struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func viewOfSnapshot(s *dsecv1.Snapshot) snapshotView {
	v := snapshotView{SnapshotID: s.GetId(), Names: []string{}}
	if n := s.GetLabels()[labelName]; n != "" {
		v.Names = append(v.Names, n)
	}
	return v
}

// snapshot keeps the disk. That memory is not kept is what a client that asks for it is told.
func (d *Door) snapshot(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in struct {
		Name   string `json:"name"`
		Memory *bool  `json:"memory"`
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if in.Memory != nil && *in.Memory {
		return unsupported("memory: true: snapshots of containers keep the disk, not processes; leave memory out")
	}
	if len(in.Name) > 256 {
		return refused(http.StatusBadRequest, "the name has %d bytes: want at most 256", len(in.Name))
	}
	labels := map[string]string{labelTemplate: templateOf(b), labelName: in.Name}
	resp, err := d.snapshots.CreateSnapshot(r.Context(), &dsecv1.CreateSnapshotRequest{SandboxId: b.GetId(), Labels: labels})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, viewOfSnapshot(resp.GetSnapshot()))
	return nil
}

// listSnapshots pages by number: there are few.
func (d *Door) listSnapshots(w http.ResponseWriter, r *http.Request) error {
	v := r.URL.Query()
	limit, skip := maxPage, 0
	for name, to := range map[string]*int{"limit": &limit, "nextToken": &skip} {
		if s := v.Get(name); s != "" {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || name == "limit" && (n < 1 || n > maxPage) {
				return refused(http.StatusBadRequest, "%s %.40q is none of ours, or above %d", name, s, maxPage)
			}
			*to = n
		}
	}
	resp, err := d.snapshots.ListSnapshots(r.Context(), &dsecv1.ListSnapshotsRequest{SandboxId: v.Get("sandboxID")})
	if err != nil {
		return err
	}
	ours := slices.DeleteFunc(resp.GetSnapshots(), func(s *dsecv1.Snapshot) bool { return s.GetLabels()[labelTemplate] == "" })
	out := []snapshotView{}
	for _, s := range ours[min(skip, len(ours)):min(skip+limit, len(ours))] {
		out = append(out, viewOfSnapshot(s))
	}
	if skip+limit < len(ours) {
		w.Header().Set("X-Next-Token", strconv.Itoa(skip+limit))
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}

// snapshotNamed finds the newest snapshot of a name; nil = there is none.
func (d *Door) snapshotNamed(ctx context.Context, name string) (*dsecv1.Snapshot, error) {
	resp, err := d.snapshots.ListSnapshots(ctx, &dsecv1.ListSnapshotsRequest{Labels: map[string]string{labelName: name}})
	if err != nil || len(resp.GetSnapshots()) == 0 {
		return nil, err
	}
	return resp.GetSnapshots()[0], nil
}

type forkResult struct {
	Sandbox *sandboxView `json:"sandbox,omitempty"`
	Error   *apiError    `json:"error,omitempty"`
}

// fork makes sandboxes of another's disk. They start without its processes, which clients that expect a copy of memory
// find out by docs/e2b.md.
func (d *Door) fork(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	in := struct {
		Count   *int     `json:"count"`
		Timeout *float64 `json:"timeout"`
	}{}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	count, timeout := 1, timeoutOf(b)
	if in.Count != nil {
		count = *in.Count
	}
	if in.Timeout != nil {
		timeout = *in.Timeout
	}
	if count < 1 || count > 100 {
		return refused(http.StatusBadRequest, "count is %d: want 1 to 100", count)
	}
	if err := checkTimeout(timeout); err != nil {
		return err
	}
	resp, err := d.snapshots.ForkSandbox(r.Context(), &dsecv1.ForkSandboxRequest{
		SandboxId: b.GetId(), Count: int32(count), TtlSeconds: proto.Float64(max(timeout, soon)), IdleTimeoutSeconds: proto.Float64(0),
	})
	if err != nil {
		return err
	}
	out := []forkResult{}
	for _, res := range resp.GetResults() {
		if res.GetSandbox() == nil {
			e := toAPIError(itemFailed(res.GetError()))
			out = append(out, forkResult{Error: &e})
			continue
		}
		v, err := d.view(r.Context(), res.GetSandbox())
		if err != nil {
			return err
		}
		out = append(out, forkResult{Sandbox: &v})
	}
	writeJSON(w, http.StatusCreated, out)
	return nil
}

// snapshotOf finds a snapshot by id or name; nil = there is none.
func (d *Door) snapshotOf(ctx context.Context, id string) (*dsecv1.Snapshot, error) {
	if _, err := sandbox.ParseSnapshotID(id); err != nil {
		return d.snapshotNamed(ctx, id)
	}
	resp, err := d.snapshots.ListSnapshots(ctx, &dsecv1.ListSnapshotsRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range resp.GetSnapshots() {
		if s.GetId() == id {
			return s, nil
		}
	}
	return nil, nil
}
