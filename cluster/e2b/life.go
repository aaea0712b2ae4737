package e2b

import (
	"context"
	"net/http"
	"time"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (d *Door) info(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	v, err := d.detail(r.Context(), b)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, v)
	return nil
}

func (d *Door) kill(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	if _, err := d.sandboxes.StopSandbox(r.Context(), &dsecv1.StopSandboxRequest{SandboxId: b.GetId()}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// live sets the time that a sandbox lives from now on, or from when it is resumed on. An idle timeout, which one made through
// another door may have, is taken off.
func (d *Door) live(ctx context.Context, b *dsecv1.Sandbox, timeout float64) error {
	_, err := d.sandboxes.ExtendSandbox(ctx, &dsecv1.ExtendSandboxRequest{
		SandboxId: b.GetId(), TtlSeconds: proto.Float64(max(timeout, soon)), IdleTimeoutSeconds: proto.Float64(0),
	})
	return err
}

func (d *Door) setTimeout(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in struct {
		Timeout *float64 `json:"timeout"`
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if in.Timeout == nil {
		return refused(http.StatusBadRequest, "timeout is missing")
	}
	if err := checkTimeout(*in.Timeout); err != nil {
		return err
	}
	if err := d.live(r.Context(), b, *in.Timeout); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// refresh extends, and never shortens.
func (d *Door) refresh(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in struct {
		Duration float64 `json:"duration"`
	}
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if !(in.Duration >= 0 && in.Duration <= 3600) {
		return refused(http.StatusBadRequest, "duration is %v seconds: want 0 to 3600", in.Duration)
	}
	if err := d.extend(r.Context(), b, in.Duration); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (d *Door) extend(ctx context.Context, b *dsecv1.Sandbox, timeout float64) error {
	if at := b.GetExpiresAt(); at == nil || time.Until(at.AsTime()).Seconds() >= timeout {
		return nil
	}
	return d.live(ctx, b, timeout)
}

type resumeBody struct {
	Timeout   *float64 `json:"timeout"`
	Memory    *bool    `json:"memory"`
	AutoPause bool     `json:"autoPause"` // of older clients
}

func (in resumeBody) check(def float64) (float64, error) {
	if in.Memory != nil && !*in.Memory {
		return 0, unsupported("memory: false (a start from the disk alone): a paused sandbox keeps its processes")
	}
	if in.Timeout == nil {
		return def, nil
	}
	return *in.Timeout, checkTimeout(*in.Timeout)
}

// connect resumes a paused sandbox (201), and extends one that runs (200).
func (d *Door) connect(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in resumeBody
	if err := readJSON(r, &in); err != nil {
		return err
	}
	timeout, err := in.check(defaultTimeout)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if b.GetState() == dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		status = http.StatusCreated
		if b, err = d.thaw(r.Context(), b, timeout); err != nil {
			return err
		}
	} else if err := d.extend(r.Context(), b, timeout); err != nil {
		return err
	}
	v, err := d.view(r.Context(), b)
	if err != nil {
		return err
	}
	writeJSON(w, status, v)
	return nil
}

func (d *Door) thaw(ctx context.Context, b *dsecv1.Sandbox, timeout float64) (*dsecv1.Sandbox, error) {
	if err := d.live(ctx, b, timeout); err != nil { // before: it must not run out of time in between
		return nil, err
	}
	resp, err := d.sandboxes.ResumeSandbox(ctx, &dsecv1.ResumeSandboxRequest{SandboxId: b.GetId()})
	return resp.GetSandbox(), err
}

// resume is what older clients call.
func (d *Door) resume(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in resumeBody
	if err := readJSON(r, &in); err != nil {
		return err
	}
	timeout, err := in.check(oldTimeout)
	if err != nil {
		return err
	}
	switch {
	case b.GetState() != dsecv1.SandboxState_SANDBOX_STATE_PAUSED:
		return refused(http.StatusConflict, "sandbox %s is running already", b.GetId())
	case in.AutoPause && b.GetSpec().GetOnTimeout() != dsecv1.OnTimeout_ON_TIMEOUT_PAUSE:
		return unsupported("autoPause of a sandbox that was created without: say so at its creation")
	}
	if b, err = d.thaw(r.Context(), b, timeout); err != nil {
		return err
	}
	v, err := d.view(r.Context(), b)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, v)
	return nil
}

// pause freezes. A paused sandbox is kept for as long as its spec says; one that a request wakes has the timeout that it was
// created with.
func (d *Door) pause(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	var in resumeBody
	if err := readJSON(r, &in); err != nil {
		return err
	}
	if _, err := in.check(0); err != nil {
		return err
	}
	if b.GetState() == dsecv1.SandboxState_SANDBOX_STATE_PAUSED {
		return refused(http.StatusConflict, "sandbox %s is paused already", b.GetId())
	}
	if _, err := d.sandboxes.PauseSandbox(r.Context(), &dsecv1.PauseSandboxRequest{SandboxId: b.GetId()}); err != nil {
		return err
	}
	if err := d.live(r.Context(), b, timeoutOf(b)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
