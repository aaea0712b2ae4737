package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	pb "github.com/opendsec/dsec/cluster/e2b/envd/process"
	"github.com/opendsec/dsec/cluster/e2b/envd/process/processconnect"
)

// door speaks as E2B clients do, with as little work of its own as the client of our API has.
type door struct {
	url, key string
	http     *http.Client
}

func newDoor(url, key string) *door {
	return &door{url, key, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}}}
}

// box is a sandbox as clients know it.
type box struct {
	ID    string `json:"sandboxID"`
	Token string `json:"envdAccessToken"`
}

func (d *door) send(req *http.Request, into any) error {
	resp, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s %s: %s: %.300s", req.Method, req.URL.Path, resp.Status, body)
	}
	switch to := into.(type) {
	case nil:
		return nil
	case *[]byte:
		*to = body
		return nil
	}
	return json.Unmarshal(body, into)
}

func (d *door) control(ctx context.Context, method, path, body string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, d.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("X-Api-Key", d.key)
	req.Header.Set("Content-Type", "application/json")
	return d.send(req, into)
}

func (d *door) create(ctx context.Context) (b box, err error) {
	err = d.control(ctx, http.MethodPost, "/v2/sandboxes", `{"templateID":"`+template+`","timeout":300,"allow_internet_access":false}`, &b)
	return b, err
}

func (d *door) kill(ctx context.Context, b box) error {
	return d.control(ctx, http.MethodDelete, "/sandboxes/"+b.ID, "", nil)
}

// headers lead a request to a sandbox.
func (b box) headers(h http.Header) {
	h.Set("E2b-Sandbox-Id", b.ID)
	h.Set("E2b-Sandbox-Port", "49983")
	h.Set("X-Access-Token", b.Token)
}

// exec runs a command to its end.
func (d *door) exec(ctx context.Context, b box, argv []string) error {
	c := processconnect.NewProcessClient(d.http, d.url, connect.WithAcceptCompression("gzip", nil, nil))
	ctx, call := connect.NewClientContext(ctx)
	b.headers(call.RequestHeader())
	s, err := c.Start(ctx, &pb.StartRequest{Process: &pb.ProcessConfig{Cmd: argv[0], Args: argv[1:]}, Stdin: proto.Bool(false)})
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
		if end := s.Msg().GetEvent().GetEnd(); end != nil {
			if end.GetExitCode() != 0 {
				return fmt.Errorf("the command ended with %v", end)
			}
			return nil
		}
	}
	return errors.Join(errors.New("the stream ended before the command did"), s.Err())
}

func (d *door) file(ctx context.Context, method string, b box, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, d.url+"/files?"+url.Values{"path": {path}}.Encode(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	b.headers(req.Header)
	req.Header.Set("Content-Type", "application/octet-stream")
	var out []byte
	err = d.send(req, &out)
	return out, err
}
