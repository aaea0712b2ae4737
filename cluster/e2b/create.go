package e2b

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

const (
	defaultTimeout = 300 // seconds, of newer clients
	oldTimeout     = 15
	maxTimeout     = 30 * 24 * 3600

	interpreterTemplate = "code-interpreter-v1" // which clients of the code interpreter ask for
)

// newSandbox is the body of a creation.
type newSandbox struct {
	TemplateID          string            `json:"templateID"`
	Timeout             *float64          `json:"timeout"`
	AutoPause           bool              `json:"autoPause"`
	AutoPauseMemory     *bool             `json:"autoPauseMemory"`
	AutoResume          *autoResume       `json:"autoResume"`
	AllowInternetAccess *bool             `json:"allow_internet_access"`
	Metadata            map[string]string `json:"metadata"`
	EnvVars             map[string]string `json:"envVars"`
	Network             *networkConfig    `json:"network"`
	MCP                 map[string]any    `json:"mcp"`
	IAM                 map[string]any    `json:"iam"`
	VolumeMounts        []any             `json:"volumeMounts"`
}

type autoResume struct {
	Enabled bool `json:"enabled"`
}

func (d *Door) create(w http.ResponseWriter, r *http.Request, timeout float64) error {
	var in newSandbox
	if err := readJSON(r, &in); err != nil {
		return err
	}
	spec, err := in.spec(timeout)
	if err != nil {
		return err
	}
	req := &dsecv1.CreateSandboxRequest{Spec: spec}
	if k := r.Header.Get("Idempotency-Key"); k != "" {
		sum := sha256.Sum256([]byte(presented(r) + "\x00" + k))
		req.IdempotencyKey = "e2b-" + hex.EncodeToString(sum[:])
	}
	template, backend, err := splitBackend(in.TemplateID)
	if err != nil {
		return err
	}
	spec.Backend = backend
	b, err := d.createOf(r.Context(), template, req)
	if err != nil {
		return err
	}
	out, err := d.view(r.Context(), b)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, out)
	return nil
}

// spec translates all but the template.
func (in *newSandbox) spec(timeout float64) (*dsecv1.SandboxSpec, error) {
	switch {
	case in.TemplateID == "":
		return nil, refused(http.StatusBadRequest, "templateID is missing")
	case in.AutoPauseMemory != nil && !*in.AutoPauseMemory:
		return nil, unsupported("autoPauseMemory: false (on_timeout with mode filesystem): a sandbox that is paused keeps its processes")
	case len(in.MCP) > 0:
		return nil, unsupported("mcp")
	case len(in.IAM) > 0:
		return nil, unsupported("iam")
	case len(in.VolumeMounts) > 0:
		return nil, unsupported("volumeMounts")
	}
	if in.Timeout != nil {
		timeout = *in.Timeout
	}
	if err := checkTimeout(timeout); err != nil {
		return nil, err
	}
	labels := map[string]string{labelTemplate: in.TemplateID, labelTimeout: strconv.FormatFloat(timeout, 'f', -1, 64)}
	if err := metadataLabels(in.Metadata, labels); err != nil {
		return nil, err
	}
	if in.Network != nil && in.Network.AllowPublicTraffic != nil && !*in.Network.AllowPublicTraffic {
		labels[labelPrivate] = "true"
	}
	rules, internet, err := in.Network.rules(in.AllowInternetAccess)
	if err != nil {
		return nil, err
	}
	labels[labelInternet] = strconv.FormatBool(internet)
	spec := &dsecv1.SandboxSpec{Env: in.EnvVars, Labels: labels, TtlSeconds: proto.Float64(max(timeout, soon)), NetworkRules: rules}
	if in.AutoPause {
		spec.OnTimeout = dsecv1.OnTimeout_ON_TIMEOUT_PAUSE
	}
	// Clients that say nothing leave it to the service: here any request wakes a sandbox.
	spec.ManualResume = in.AutoResume != nil && !in.AutoResume.Enabled
	return spec, nil
}

// soon is a time to live that has run out when the answer is read: what a timeout of 0 asks for.
const soon = 0.001

func checkTimeout(s float64) error {
	if !(s >= 0 && s <= maxTimeout) {
		return refused(http.StatusBadRequest, "timeout is %v seconds: want 0 to %d", s, maxTimeout)
	}
	return nil
}

// createOf makes one sandbox of what clients call a template: a named environment, a base or image, a snapshot.
func (d *Door) createOf(ctx context.Context, template string, req *dsecv1.CreateSandboxRequest) (*dsecv1.Sandbox, error) {
	if _, err := sandbox.ParseSnapshotID(template); err == nil {
		return d.createOne(ctx, &dsecv1.Environment{Snapshot: template}, req)
	}
	first, err := d.createOne(ctx, &dsecv1.Environment{Name: template}, req)
	if err == nil || !unknownTemplate(err) {
		return first, err
	}
	b, err := d.createOne(ctx, &dsecv1.Environment{Image: template}, req)
	if err == nil || !unknownTemplate(err) {
		return b, err
	}
	snap, serr := d.snapshotNamed(ctx, template)
	if serr != nil {
		return nil, serr
	}
	if snap == nil && template == interpreterTemplate {
		return nil, refused(http.StatusNotFound, "template %s was not found: hack/code-interpreter.sh makes it (docs/e2b.md)", template)
	}
	if snap == nil {
		return nil, refused(http.StatusNotFound, "template %.100q was not found: it names no environment, base or snapshot here (%s); `dsec env create %.100s --base NAME` makes one", template, message(err), template)
	}
	return d.createOne(ctx, &dsecv1.Environment{Snapshot: snap.GetId()}, req)
}

// unknownTemplate tells that a name means nothing in the catalogue, or cannot.
func unknownTemplate(err error) bool {
	var item *itemError
	if errors.As(err, &item) {
		return false
	}
	c := connect.CodeOf(err)
	return c == connect.CodeNotFound || c == connect.CodeInvalidArgument
}

// itemError is a sandbox that was not made, of a creation that was well formed.
type itemError struct{ err *connect.Error }

func (e *itemError) Error() string { return e.err.Message() }
func (e *itemError) Unwrap() error { return e.err }

func itemFailed(e *dsecv1.Error) error {
	var code connect.Code
	if code.UnmarshalText([]byte(e.GetCode())) != nil {
		code = connect.CodeInternal
	}
	return &itemError{connect.NewError(code, errors.New(cmp.Or(e.GetMessage(), "the sandbox was not made")))}
}

// createOne makes one sandbox. Clients expect the internet where they say nothing: on a node that has no network they
// get a sandbox without, and are told so by its info.
func (d *Door) createOne(ctx context.Context, env *dsecv1.Environment, req *dsecv1.CreateSandboxRequest) (*dsecv1.Sandbox, error) {
	req = proto.Clone(req).(*dsecv1.CreateSandboxRequest)
	req.Spec.Environment = env
	resp, err := d.sandboxes.CreateSandbox(ctx, req)
	if err == nil && len(resp.GetResults()) != 1 {
		err = connect.NewError(connect.CodeInternal, errors.New("the API answered without a result"))
	}
	if err == nil {
		if b := resp.GetResults()[0].GetSandbox(); b != nil {
			return b, nil
		}
		err = itemFailed(resp.GetResults()[0].GetError())
	}
	if connect.CodeOf(err) == connect.CodeUnimplemented && req.Spec.Labels[labelInternet] == "true" && isDefaultNetwork(req.Spec.NetworkRules) {
		req.Spec.Labels[labelInternet], req.Spec.NetworkRules = "false", none()
		if req.IdempotencyKey != "" {
			req.IdempotencyKey += "-offline" // another body; when the client asks again, it comes here again
		}
		return d.createOne(ctx, env, req)
	}
	return nil, err
}
