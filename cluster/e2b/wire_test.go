package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/sandbox"
)

const (
	boxID   = "sabcdabcdefghijklmno"
	goodKey = "e2b_0000000000000000000000000000000000000000"
)

// far is the far side of these tests: our API's services, recording what reaches them.
type far struct {
	dsecv1connect.UnimplementedSandboxServiceHandler
	dsecv1connect.UnimplementedCommandServiceHandler
	dsecv1connect.UnimplementedFileServiceHandler
	dsecv1connect.UnimplementedSnapshotServiceHandler

	mu    sync.Mutex
	calls []any
	box   *dsecv1.Sandbox
	files map[string]string
	// down is a path that cannot be read for now: cut = its answer breaks off.
	down string
	cut  bool
	// port is the address where a sandbox's port listens; "" = nowhere.
	port string
}

func (f *far) saw(r any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r)
}

func last[T any](t *testing.T, f *far) T {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := len(f.calls) - 1; i >= 0; i-- {
		if r, ok := f.calls[i].(T); ok {
			return r
		}
	}
	var none T
	t.Fatalf("no %T reached the API: %v", none, f.calls)
	return none
}

func (f *far) CreateSandbox(_ context.Context, r *dsecv1.CreateSandboxRequest) (*dsecv1.CreateSandboxResponse, error) {
	f.saw(r)
	f.box.Spec = r.GetSpec()
	return &dsecv1.CreateSandboxResponse{Results: []*dsecv1.CreateResult{{Sandbox: f.box}}}, nil
}

func (f *far) GetSandbox(_ context.Context, r *dsecv1.GetSandboxRequest) (*dsecv1.GetSandboxResponse, error) {
	if r.GetSandboxId() != boxID {
		return nil, connect.NewError(connect.CodeNotFound, errors.New("sandbox: not found"))
	}
	return &dsecv1.GetSandboxResponse{Sandbox: f.box}, nil
}

func (f *far) PauseSandbox(_ context.Context, r *dsecv1.PauseSandboxRequest) (*dsecv1.PauseSandboxResponse, error) {
	f.saw(r)
	f.box.State = dsecv1.SandboxState_SANDBOX_STATE_PAUSED
	return &dsecv1.PauseSandboxResponse{Sandbox: f.box}, nil
}

func (f *far) ResumeSandbox(_ context.Context, r *dsecv1.ResumeSandboxRequest) (*dsecv1.ResumeSandboxResponse, error) {
	f.saw(r)
	f.box.State = dsecv1.SandboxState_SANDBOX_STATE_RUNNING
	return &dsecv1.ResumeSandboxResponse{Sandbox: f.box}, nil
}

func (f *far) ExtendSandbox(_ context.Context, r *dsecv1.ExtendSandboxRequest) (*dsecv1.ExtendSandboxResponse, error) {
	f.saw(r)
	return &dsecv1.ExtendSandboxResponse{Sandbox: f.box}, nil
}

func (f *far) StopSandbox(_ context.Context, r *dsecv1.StopSandboxRequest) (*dsecv1.StopSandboxResponse, error) {
	f.saw(r)
	return &dsecv1.StopSandboxResponse{Sandbox: f.box}, nil
}

func (f *far) SetNetwork(_ context.Context, r *dsecv1.SetNetworkRequest) (*dsecv1.SetNetworkResponse, error) {
	f.saw(r)
	return &dsecv1.SetNetworkResponse{}, nil
}

func (f *far) ListSandboxes(_ context.Context, r *dsecv1.ListSandboxesRequest) (*dsecv1.ListSandboxesResponse, error) {
	f.saw(r)
	return &dsecv1.ListSandboxesResponse{Sandboxes: []*dsecv1.Sandbox{f.box}}, nil
}

func (f *far) CreateSnapshot(_ context.Context, r *dsecv1.CreateSnapshotRequest) (*dsecv1.CreateSnapshotResponse, error) {
	f.saw(r)
	return &dsecv1.CreateSnapshotResponse{Snapshot: &dsecv1.Snapshot{Id: "nabcdabcdefghijklmno", Labels: r.GetLabels()}}, nil
}

func (f *far) ForkSandbox(_ context.Context, r *dsecv1.ForkSandboxRequest) (*dsecv1.ForkSandboxResponse, error) {
	f.saw(r)
	return &dsecv1.ForkSandboxResponse{Results: []*dsecv1.CreateResult{{Sandbox: f.box}, {Error: &dsecv1.Error{Code: "resource_exhausted", Message: "full"}}}}, nil
}

func (f *far) StartCommand(_ context.Context, r *dsecv1.StartCommandRequest, out *connect.ServerStream[dsecv1.StartCommandResponse]) error {
	f.saw(r)
	for _, e := range []*dsecv1.CommandEvent{
		{Event: &dsecv1.CommandEvent_Started{Started: f.command()}},
		{Event: &dsecv1.CommandEvent_Output{Output: &dsecv1.Output{Stream: dsecv1.Stream_STREAM_STDOUT, Data: []byte("\xff\n")}}},
		{Event: &dsecv1.CommandEvent_Ended{Ended: &dsecv1.Command{Pid: 7, Result: &dsecv1.CommandResult{End: &dsecv1.Failure{Kind: "exited"}, ExitCode: 3}}}},
	} {
		if err := out.Send(&dsecv1.StartCommandResponse{Event: e}); err != nil {
			return err
		}
	}
	return nil
}

func (f *far) command() *dsecv1.Command {
	return &dsecv1.Command{Id: "c1", Pid: 7, Spec: &dsecv1.CommandSpec{Argv: []string{"/bin/bash"}, Tag: "t"}}
}

func (f *far) ListCommands(context.Context, *dsecv1.ListCommandsRequest) (*dsecv1.ListCommandsResponse, error) {
	return &dsecv1.ListCommandsResponse{Commands: []*dsecv1.Command{f.command()}}, nil
}

func (f *far) GetCommand(context.Context, *dsecv1.GetCommandRequest) (*dsecv1.GetCommandResponse, error) {
	c := f.command()
	c.Result = &dsecv1.CommandResult{}
	return &dsecv1.GetCommandResponse{Command: c}, nil
}

func (f *far) SendInput(_ context.Context, r *dsecv1.SendInputRequest) (*dsecv1.SendInputResponse, error) {
	f.saw(r)
	return &dsecv1.SendInputResponse{}, nil
}

func (f *far) SignalCommand(_ context.Context, r *dsecv1.SignalCommandRequest) (*dsecv1.SignalCommandResponse, error) {
	f.saw(r)
	return &dsecv1.SignalCommandResponse{}, nil
}

func (f *far) ResizeTerminal(_ context.Context, r *dsecv1.ResizeTerminalRequest) (*dsecv1.ResizeTerminalResponse, error) {
	f.saw(r)
	return &dsecv1.ResizeTerminalResponse{}, nil
}

// keys are those of these tests.
type keys struct{}

func (keys) Authenticate(_ context.Context, presented string) (iam.Key, error) {
	if presented != goodKey {
		return iam.Key{}, fmt.Errorf("API key: %w", sandbox.ErrUnauthenticated)
	}
	return iam.Key{ID: "k"}, nil
}

func (keys) SandboxToken(_ context.Context, purpose string, id sandbox.ID) (string, error) {
	sum := sha256.Sum256([]byte(purpose + string(id)))
	return hex.EncodeToString(sum[:]), nil
}

// rig is a door on a server, with the API behind it on another.
type rig struct {
	*httptest.Server
	far *far
}

// toServer sends requests of any host to one server.
type toServer struct{ url string }

func (s toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Host = strings.TrimPrefix(s.url, "http://")
	return http.DefaultTransport.RoundTrip(r)
}

func newRig(t *testing.T) *rig {
	f := &far{files: map[string]string{}, box: &dsecv1.Sandbox{
		Id: boxID, State: dsecv1.SandboxState_SANDBOX_STATE_RUNNING, Spec: &dsecv1.SandboxSpec{Labels: map[string]string{labelTemplate: "base"}},
		CreatedAt: timestamppb.Now(), ExpiresAt: timestamppb.New(time.Now().Add(time.Minute)),
	}}
	mux := http.NewServeMux()
	mux.Handle(dsecv1connect.NewSandboxServiceHandler(f))
	mux.Handle(dsecv1connect.NewCommandServiceHandler(f))
	mux.Handle(dsecv1connect.NewFileServiceHandler(f))
	mux.Handle(dsecv1connect.NewSnapshotServiceHandler(f))
	mux.HandleFunc("PUT /v1/sandboxes/{id}/files", func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.files[r.URL.Query().Get("path")] = string(b)
	})
	mux.HandleFunc("GET /v1/sandboxes/{id}/files", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		b, ok := f.files[r.URL.Query().Get("path")]
		if r.URL.Query().Get("path") == f.down {
			if f.cut {
				w.Header().Set("Content-Length", "1000")
				_, _ = io.WriteString(w, "root:x:0:")
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"unavailable","message":"the edge does not answer"}`)
			return
		}
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not_found","message":"no such file","reason":"not_found"}`)
			return
		}
		_, _ = io.WriteString(w, b)
	})
	api := httptest.NewServer(mux)
	t.Cleanup(api.Close)
	d := New(Options{
		API: toServer{api.URL}, WithKey: func(ctx context.Context, _ iam.Key) context.Context { return ctx }, Keys: keys{}, Domain: "example.org", Scratch: filepath.Join(t.TempDir(), "e2b"),
		Dial: func(context.Context, sandbox.ID, uint16) (net.Conn, error) {
			if f.port == "" {
				return nil, errors.New("nothing listens")
			}
			return net.Dial("tcp", f.port)
		},
		Log: slog.New(slog.DiscardHandler),
	})
	r := &rig{httptest.NewServer(d), f}
	t.Cleanup(r.Close)
	return r
}

// do sends a request and returns status and body.
func (r *rig) do(t *testing.T, method, path string, header map[string]string, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func control() map[string]string {
	return map[string]string{"X-Api-Key": goodKey, "Content-Type": "application/json"}
}

func inside(t *testing.T, media string) map[string]string {
	token, _ := keys{}.SandboxToken(t.Context(), purposeEnvd, boxID)
	return map[string]string{headerSandbox: boxID, headerPort: "49983", headerToken: token, "Content-Type": media, "Connect-Protocol-Version": "1"}
}

// frame is one message of a Connect stream.
func frame(body string) string {
	n := len(body)
	return string([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + body
}

func field(t *testing.T, body, name string) any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return m[name]
}
