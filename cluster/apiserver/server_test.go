package apiserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/internal/tcptunnel"
	"github.com/opendsec/dsec/sandbox"
)

// TestForwardsRaw sends one request in every protocol and encoding.
func TestForwardsRaw(t *testing.T) {
	r := newRig(t, "aaaa", "bbbb")
	id := r.edges[1].add(1)[0]
	h2 := &http.Transport{Protocols: new(http.Protocols)}
	h2.Protocols.SetUnencryptedHTTP2(true)
	defer h2.CloseIdleConnections()
	keyed2 := &http.Client{Transport: roundTrip(func(q *http.Request) (*http.Response, error) {
		q = q.Clone(q.Context())
		q.Header.Set("X-API-Key", r.key)
		return h2.RoundTrip(q)
	})}
	big := strings.Repeat("x", 200_000)
	for name, c := range map[string]struct {
		http *http.Client
		opts []connect.ClientOption
	}{
		"connect proto": {r.bearer(), nil},
		"connect json":  {r.bearer(), []connect.ClientOption{connect.WithProtoJSON()}},
		"connect gzip":  {r.bearer(), []connect.ClientOption{connect.WithSendGzip()}},
		"grpc":          {keyed2, []connect.ClientOption{connect.WithGRPC()}},
		"grpc-web":      {r.bearer(), []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		t.Run(name, func(t *testing.T) {
			cmds := dsecv1connect.NewCommandServiceClient(c.http, r.api.URL, c.opts...)
			for _, script := range []string{"echo hi", big} {
				resp, err := cmds.Exec(ctxT(t), &dsecv1.ExecRequest{SandboxId: id, Command: &dsecv1.CommandSpec{Shell: script}})
				if err != nil || string(resp.GetStdout()) != script {
					t.Fatalf("%d bytes: %v", len(resp.GetStdout()), err)
				}
			}
			h := r.edges[1].lastHeader()
			if h.Get("Dsec-Key-Id") != r.keyID {
				t.Errorf("key id: %q", h.Get("Dsec-Key-Id"))
			}
			if h.Get("Dsec-Project") != "default" {
				t.Errorf("project: %q", h.Get("Dsec-Project"))
			}
			for name, values := range h {
				if strings.Contains(strings.Join(values, " "), r.key) {
					t.Errorf("the key travelled on in %s", name)
				}
			}
			boxes := dsecv1connect.NewSandboxServiceClient(c.http, r.api.URL, c.opts...)
			_, err := boxes.GetSandbox(ctxT(t), &dsecv1.GetSandboxRequest{SandboxId: string(sandbox.NewID("bbbb"))})
			wantCode(t, err, connect.CodeNotFound)
			if !strings.Contains(err.Error(), "ended long ago") || len(err.(*connect.Error).Details()) != 1 {
				t.Errorf("the edge's error changed on its way: %v", err)
			}
		})
	}
}

// TestStreams checks that pieces are not held back, and that a client that goes takes its request along.
func TestStreams(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	cmds := dsecv1connect.NewCommandServiceClient(r.bearer(), r.api.URL)
	s, err := cmds.StartCommand(ctxT(t), &dsecv1.StartCommandRequest{SandboxId: id})
	if err != nil {
		t.Fatal(err)
	}
	// "two" comes only after "one" was received here.
	if !s.Receive() || string(s.Msg().GetEvent().GetOutput().GetData()) != "one" {
		t.Fatalf("first piece: %v, %v", s.Msg(), s.Err())
	}
	r.edges[0].release <- struct{}{}
	if !s.Receive() || string(s.Msg().GetEvent().GetOutput().GetData()) != "two" {
		t.Fatalf("second piece: %v, %v", s.Msg(), s.Err())
	}
	if s.Receive() || s.Err() != nil {
		t.Fatalf("end: %v", s.Err())
	}
	s.Close()

	ctx := ctxT(t)
	s, err = cmds.StartCommand(ctx, &dsecv1.StartCommandRequest{SandboxId: id})
	if err != nil || !s.Receive() {
		t.Fatal(err)
	}
	s.Close()
	select {
	case <-r.edges[0].gone:
	case <-ctx.Done():
		t.Fatal("the edge was not told that the client went away")
	}

	// An edge that dies ends the stream with an error, never cleanly.
	s, err = cmds.StartCommand(ctx, &dsecv1.StartCommandRequest{SandboxId: id})
	if err != nil || !s.Receive() {
		t.Fatal(err)
	}
	r.edges[0].srv.Close()
	if s.Receive() || s.Err() == nil {
		t.Fatal("a cut stream ended cleanly")
	}
}

func TestEdgeDown(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	boxes := dsecv1connect.NewSandboxServiceClient(r.bearer(), r.api.URL)
	if _, err := boxes.GetSandbox(ctxT(t), &dsecv1.GetSandboxRequest{SandboxId: id}); err != nil {
		t.Fatal(err)
	}
	r.edges[0].srv.Close()
	_, get := boxes.GetSandbox(ctxT(t), &dsecv1.GetSandboxRequest{SandboxId: id})
	_, list := boxes.ListSandboxes(ctxT(t), &dsecv1.ListSandboxesRequest{})
	_, stop := boxes.StopSandboxes(ctxT(t), &dsecv1.StopSandboxesRequest{Labels: map[string]string{"a": "b"}})
	_, create := boxes.CreateSandbox(ctxT(t), &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "debian"}}})
	for name, err := range map[string]error{"get": get, "list": list, "stop by label": stop, "create": create} {
		if connect.CodeOf(err) != connect.CodeUnavailable || err.(*connect.Error).Meta().Get("Retry-After") == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	events, err := boxes.StreamEvents(ctxT(t), &dsecv1.StreamEventsRequest{})
	if err == nil {
		for events.Receive() {
		}
		err = events.Err()
		events.Close()
	}
	wantCode(t, err, connect.CodeUnavailable)
	resp, err := http.Get(r.api.URL + "/readyz")
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("readyz: %v, %v", resp, err)
	}
	r.edges[0].start(t)
	if _, err := boxes.GetSandbox(ctxT(t), &dsecv1.GetSandboxRequest{SandboxId: id}); err != nil {
		t.Errorf("after its return: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	do := func(method, path, key, contentType, body string) (int, string) {
		q, _ := http.NewRequest(method, r.api.URL+path, strings.NewReader(body))
		if key != "" {
			q.Header.Set("Authorization", "Bearer "+key)
		}
		q.Header.Set("Content-Type", contentType)
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	const get, js = "/dsec.v1.SandboxService/GetSandbox", "application/json"
	for _, c := range []struct {
		name, method, path, key, contentType, body string
		status                                     int
		code, text                                 string
	}{
		{"no key", "POST", get, "", js, `{}`, 401, "unauthenticated", "dsec key create"},
		{"wrong key", "POST", get, "dsec_aaaaaaaa_" + strings.Repeat("a", 32), js, `{}`, 401, "unauthenticated", "not known"},
		{"no key, plain path", "GET", "/v1/sandboxes/" + id + "/files?path=/", "", "", "", 401, "unauthenticated", "dsec key create"},
		{"unknown path", "GET", "/nothing", r.key, "", "", 404, "not_found", "no such endpoint"},
		{"the edges' own service", "POST", "/dsec.v1.EdgeService/CreateResolved", r.key, js, `{}`, 404, "not_found", "no such endpoint"},
		{"no such method", "POST", "/dsec.v1.SandboxService/CreateSandboxes", r.key, js, `{}`, 404, "not_found", "no such endpoint"},
		{"no such method of a sandbox", "POST", "/dsec.v1.CommandService/Run", r.key, js, `{"sandboxId":"` + id + `"}`, 404, "not_found", "no such endpoint"},
		{"no such method of our own service", "POST", "/dsec.v1.KeyService/MakeKey", r.key, js, `{}`, 404, "not_found", "no such endpoint"},
		{"no such service", "POST", "/dsec.v1.SandboxServices/ListSandboxes", r.key, js, `{}`, 404, "not_found", "no such endpoint"},
		{"GET of a method", "GET", "/dsec.v1.SandboxService/ListSandboxes", r.key, "", "", 405, "invalid_argument", "want POST"},
		{"curl's own content type", "POST", "/dsec.v1.SandboxService/ListSandboxes", r.key, "application/x-www-form-urlencoded", `{}`, 415, "invalid_argument", "-H 'Content-Type: application/json'"},
		{"the same, forwarded", "POST", get, r.key, "text/plain", `{"sandboxId":"` + id + `"}`, 415, "invalid_argument", "text/plain"},
		{"no content type", "POST", get, r.key, "", `{}`, 415, "invalid_argument", "want Content-Type: application/json"},
		{"JSON to a stream", "POST", "/dsec.v1.CommandService/StartCommand", r.key, js, `{"sandboxId":"` + id + `"}`, 415, "invalid_argument", "application/connect+json"},
		{"step of no digest", "POST", "/dsec.v1.LayerService/PutStep", r.key, js, `{}`, 501, "unimplemented", "importer"},
		{"no id", "POST", get, r.key, js, `{}`, 400, "invalid_argument", "sandbox_id is missing"},
		{"bad id", "POST", get, r.key, js, `{"sandboxId":"../../x"}`, 400, "invalid_argument", "sandbox id"},
		{"id of nobody's edge", "POST", get, r.key, js, `{"sandboxId":"` + string(sandbox.NewID("zzzz")) + `"}`, 404, "not_found", "zzzz"},
		{"not JSON", "POST", get, r.key, js, `{]`, 400, "invalid_argument", "JSON"},
		{"too long", "POST", get, r.key, js, `{"a":"` + strings.Repeat("x", 17<<20) + `"}`, 400, "invalid_argument", "larger data goes into a file"},
		{"bad id in path", "GET", "/v1/sandboxes/x/files?path=/", r.key, "", "", 400, "invalid_argument", "sandbox id"},
		{"no label", "POST", "/dsec.v1.SandboxService/StopSandboxes", r.key, js, `{}`, 400, "invalid_argument", "label"},
		{"no spec", "POST", "/dsec.v1.SandboxService/CreateSandbox", r.key, js, `{}`, 400, "invalid_argument", "spec"},
		{"unknown base", "POST", "/dsec.v1.SandboxService/CreateSandbox", r.key, js, `{"spec":{"environment":{"base":"x"}}}`, 404, "not_found", `"x"`},
		{"too many", "POST", "/dsec.v1.SandboxService/CreateSandbox", r.key, js, `{"spec":{},"count":1001}`, 400, "invalid_argument", "1000"},
		{"unknown word", "POST", "/dsec.v1.SandboxService/ListSandboxes", r.key, js, `{"states":["NOPE"]}`, 400, "invalid_argument", "NOPE"},
		{"unknown field", "POST", "/dsec.v1.SandboxService/CreateSandbox", r.key, js, `{"spec":{"environment":{"base":"debian"},"limits":{"memory":1}}}`, 400, "invalid_argument", `"memory"`},
		{"no importer", "PUT", "/v1/layers?kind=base&name=x", r.key, "", "x", 501, "unimplemented", "importer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, body := do(c.method, c.path, c.key, c.contentType, c.body)
			var e struct{ Code, Message string }
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatalf("%d %s: no JSON", status, body)
			}
			if status != c.status || e.Code != c.code || !strings.Contains(e.Message, c.text) {
				t.Errorf("got %d %s", status, body)
			}
		})
	}
}

func TestCreateResolvesNames(t *testing.T) {
	r := newRig(t, "aaaa")
	boxes := dsecv1connect.NewSandboxServiceClient(r.bearer(), r.api.URL)
	resp, err := boxes.CreateSandbox(ctxT(t), &dsecv1.CreateSandboxRequest{IdempotencyKey: "k", Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "debian"}}})
	if err != nil || len(resp.GetResults()) != 1 {
		t.Fatal(resp, err)
	}
	got := r.edges[0].created
	if got.GetKeyId() != r.keyID || got.GetCreate().GetIdempotencyKey() != "k" || got.GetLayers()[0].GetDigest() != "b3:1" ||
		!slices.Equal(got.GetImageEnv(), []string{"A=1"}) || got.GetImageUser() != "u" || got.GetImageWorkdir() != "/w" || got.GetDefaultLimits().GetPids() != 77 {
		t.Fatalf("the edge got %v", got)
	}
}

// TestEdgeDiesDuringCreate: a connection that breaks is the platform's doing, whatever it is called below.
func TestEdgeDiesDuringCreate(t *testing.T) {
	r := newRig(t, "aaaa")
	boxes := dsecv1connect.NewSandboxServiceClient(r.bearer(), r.api.URL)
	_, err := boxes.CreateSandbox(ctxT(t), &dsecv1.CreateSandboxRequest{IdempotencyKey: "die", Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "debian"}}})
	wantCode(t, err, connect.CodeUnavailable)
}

// TestMerges asks for lists in pages of every size over several edges.
func TestMerges(t *testing.T) {
	r := newRig(t, "aaaa", "bbbb", "cccc")
	var want []string
	for i, n := range []int{5, 0, 3} {
		want = append(want, r.edges[i].add(n)...)
	}
	slices.Sort(want)
	boxes := dsecv1connect.NewSandboxServiceClient(r.bearer(), r.api.URL)
	for size := int32(1); size <= 9; size++ {
		var got []*dsecv1.Sandbox
		token := ""
		for {
			resp, err := boxes.ListSandboxes(ctxT(t), &dsecv1.ListSandboxesRequest{PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			if len(resp.GetSandboxes()) > int(size) {
				t.Fatalf("a page of %d has %d", size, len(resp.GetSandboxes()))
			}
			got = append(got, resp.GetSandboxes()...)
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
		}
		if ids := sortedIDs(got); !slices.Equal(ids, want) {
			t.Errorf("pages of %d: %d of %d", size, len(ids), len(want))
		}
	}
	_, err := boxes.ListSandboxes(ctxT(t), &dsecv1.ListSandboxesRequest{PageToken: "rubbish"})
	wantCode(t, err, connect.CodeInvalidArgument)

	stopped, err := boxes.StopSandboxes(ctxT(t), &dsecv1.StopSandboxesRequest{Labels: map[string]string{"a": "b"}})
	if err != nil || len(stopped.GetStoppedIds()) != len(want) {
		t.Errorf("stopped %v, %v", stopped, err)
	}
	for filter, n := range map[string]int{"": len(want), want[0]: 1} {
		s, err := boxes.StreamEvents(ctxT(t), &dsecv1.StreamEventsRequest{SandboxId: filter})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for s.Receive() {
			if ev := s.Msg().GetEvent(); ev != nil {
				seen[ev.GetSandboxId()] = true
			}
		}
		if s.Err() != nil || len(seen) != n {
			t.Errorf("events of %q: %v, %v", filter, seen, s.Err())
		}
		s.Close()
	}
}

func TestFilesStream(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	const size = 100 << 20
	q, _ := http.NewRequest("PUT", r.api.URL+"/v1/sandboxes/"+id+"/files?path=/x", io.LimitReader(forever{}, size))
	resp, err := r.bearer().Do(q)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if string(b) != fmt.Sprintf("%d <nil>", size) {
		t.Errorf("upload: %s", b)
	}
	resp, err = r.bearer().Get(fmt.Sprintf("%s/v1/sandboxes/%s/files?path=/x&length=%d", r.api.URL, id, size))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
		t.Errorf("download: %d, %v", n, err)
	}
}

type forever struct{}

func (forever) Read(b []byte) (int, error) { return len(b), nil }

// TestUpgrade reaches a port through the API, with half-closed directions.
func TestUpgrade(t *testing.T) {
	r := newRig(t, "aaaa")
	id := r.edges[0].add(1)[0]
	r.edges[0].port = func(c net.Conn) {
		defer c.Close()
		b, _ := io.ReadAll(c) // until the client has said all
		_, _ = c.Write(bytes.ToUpper(b))
	}
	u, _ := url.Parse(r.api.URL)
	dial := func(port uint16) (net.Conn, error) {
		nc, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		h := http.Header{}
		h.Set("Authorization", "Bearer "+r.key)
		return tcptunnel.Dial(ctxT(t), nc, tcptunnel.Request{Host: u.Host, SandboxID: id, Port: port, Header: h})
	}
	c, err := dial(8000)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); string(b) != "HELLO" || err != nil {
		t.Fatalf("got %q, %v", b, err)
	}
	if _, err := dial(8001); err == nil || !strings.Contains(err.Error(), "nothing listens there") {
		t.Fatalf("a port where nothing listens: %v", err)
	}
}
