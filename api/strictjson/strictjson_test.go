package strictjson_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/api/strictjson"
)

type boxes struct {
	dsecv1connect.UnimplementedSandboxServiceHandler
}

func (boxes) ListSandboxes(_ context.Context, r *dsecv1.ListSandboxesRequest) (*dsecv1.ListSandboxesResponse, error) {
	return &dsecv1.ListSandboxesResponse{NextPageToken: r.GetPageToken()}, nil
}

func TestRequests(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle(dsecv1connect.NewSandboxServiceHandler(boxes{}, strictjson.Option()))
	srv := httptest.NewServer(mux)
	defer srv.Close()
	unknown, err := proto.Marshal(&dsecv1.ListSandboxesRequest{PageToken: "x"})
	if err != nil {
		t.Fatal(err)
	}
	unknown = append(unknown, 0xf8, 0x7f, 1) // field 2047
	const js = "application/json"
	for _, c := range []struct {
		kind, body string
		status     int
		want       []string
	}{
		{js, `{"pageToken":"x","states":["SANDBOX_STATE_RUNNING"]}`, 200, []string{`{"nextPageToken":"x"}`}},
		{js, `{"page_token":"x"}`, 200, []string{`{"nextPageToken":"x"}`}},
		{js + "; charset=utf-8", `{"pageToken":"x"}`, 200, []string{`{"nextPageToken":"x"}`}},
		{js, `{"states":["NOPE"]}`, 400, []string{"invalid_argument", "NOPE", "states"}},
		{js, `{"limits":{"memory":1}}`, 400, []string{"invalid_argument", "limits"}},
		{js + "; charset=utf-8", `{"limit":1}`, 400, []string{"invalid_argument", "limit"}},
		{js, ``, 400, []string{"invalid_argument", "JSON object"}},
		{"application/proto", string(unknown), 200, []string{"x"}},
	} {
		resp, err := http.Post(srv.URL+dsecv1connect.SandboxServiceListSandboxesProcedure, c.kind, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.status {
			t.Errorf("%s %q: status %d, %s, %v", c.kind, c.body, resp.StatusCode, b, err)
		}
		for _, w := range c.want {
			if !strings.Contains(string(b), w) {
				t.Errorf("%s %q: %s, want %q in it", c.kind, c.body, b, w)
			}
		}
	}
}
