package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// maxLine bounds one line of an import's answer, and an error's body.
const maxLine = 1 << 20

// wireError is {"code","message"}, as every error over plain HTTP looks; with the failure where one is behind it.
type wireError struct {
	Code    string          `json:"code"`
	Message string          `json:"message"`
	Failure json.RawMessage `json:"failure"`
}

func (e wireError) err() error {
	var code connect.Code
	if err := code.UnmarshalText([]byte(e.Code)); err != nil {
		code = connect.CodeUnknown
	}
	out := connect.NewWireError(code, errors.New(e.Message))
	f := &dsecv1.Failure{}
	if len(e.Failure) > 0 && protojson.Unmarshal(e.Failure, f) == nil {
		if d, err := connect.NewErrorDetail(f); err == nil {
			out.AddDetail(d)
		}
	}
	return out
}

// do sends a plain request and returns an answer of 2xx.
func (c *Client) do(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = q.Encode()
	r, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	for b := c.backoff(); ; {
		resp, err := c.http.Do(r)
		if err != nil {
			if body == nil && transient(ctx, err) && b.wait(ctx) {
				continue
			}
			return nil, c.explain(err)
		}
		c.reached.Store(true)
		if resp.StatusCode/100 == 2 {
			return resp, nil
		}
		err = responseError(resp)
		if body == nil && connect.CodeOf(err) == connect.CodeUnavailable && b.wait(ctx) {
			continue
		}
		return nil, err
	}
}

func responseError(resp *http.Response) error {
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, maxLine))
	var we wireError
	if json.Unmarshal(b, &we) != nil || we.Code == "" {
		return connect.NewWireError(connect.CodeUnknown, fmt.Errorf("%s %s: %s: %.200s", resp.Request.Method, resp.Request.URL.Path, resp.Status, b))
	}
	return we.err()
}

func sandboxPath(id, what string) string { return "/v1/sandboxes/" + url.PathEscape(id) + "/" + what }

// ReadFile streams a file from offset, at most length bytes (length <= 0: to its end). The caller closes it; a
// transfer that breaks ends with an error, never with io.EOF.
func (c *Client) ReadFile(ctx context.Context, id, path, user string, offset, length int64) (io.ReadCloser, error) {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	if offset > 0 {
		q.Set("offset", strconv.FormatInt(offset, 10))
	}
	if length > 0 {
		q.Set("length", strconv.FormatInt(length, 10))
	}
	resp, err := c.do(ctx, http.MethodGet, sandboxPath(id, "files"), q, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// WriteOptions of WriteFile; zero values = the server's defaults.
type WriteOptions struct {
	User    string // who writes
	Owner   string // whose it becomes: "user:group"
	Mode    uint32 // permission bits; 0 = 0644
	Parents bool   // make missing directories
}

// WriteFile writes a file atomically from a stream.
func (c *Client) WriteFile(ctx context.Context, id, path string, o WriteOptions, r io.Reader) error {
	q := url.Values{"path": {path}}
	if o.User != "" {
		q.Set("user", o.User)
	}
	if o.Owner != "" {
		q.Set("owner", o.Owner)
	}
	if o.Mode != 0 {
		q.Set("mode", fmt.Sprintf("%#o", o.Mode))
	}
	if o.Parents {
		q.Set("parents", "true")
	}
	resp, err := c.do(ctx, http.MethodPut, sandboxPath(id, "files"), q, r)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// GetArchive streams a tar of the tree at path.
func (c *Client) GetArchive(ctx context.Context, id, path, user string) (io.ReadCloser, error) {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	resp, err := c.do(ctx, http.MethodGet, sandboxPath(id, "archive"), q, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}

// PutArchive unpacks a tar beneath path.
func (c *Client) PutArchive(ctx context.Context, id, path, user string, tar io.Reader) error {
	q := url.Values{"path": {path}}
	if user != "" {
		q.Set("user", user)
	}
	resp, err := c.do(ctx, http.MethodPut, sandboxPath(id, "archive"), q, tar)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Upload describes local content that becomes a layer.
type Upload struct {
	Kind   string // base, workspace, toolkit
	Name   string
	Prefix string // directory of the layer that the archive's root becomes
	Format string // "" = tar (plain, gzip or zstd), "oci" = OCI layout or docker save archive, "disk" = raw or qcow2 image
	// Firmware of a disk: bios ("") or uefi.
	Firmware string
	// Agent says of a disk that its system starts an agent.
	Agent  bool
	Source string // for listings
	// OnStart is what is run in each new sandbox that has the layer; nil = nothing.
	OnStart *dsecv1.OnStart
	// Over are the digests of the layers that it will lie on, bottom to top: what is a directory there stays what it is.
	Over []string
	// Step, in place of a name, keeps the layer as what a step of a build made.
	Step string
}

// UploadLayer streams an archive up and returns the layer. progress may be nil.
func (c *Client) UploadLayer(ctx context.Context, up Upload, tar io.Reader, progress func(*dsecv1.ImportProgress)) (*dsecv1.ImportLayerResponse, error) {
	q := url.Values{"kind": {up.Kind}}
	for k, v := range map[string]string{"name": up.Name, "prefix": up.Prefix, "format": up.Format, "firmware": up.Firmware, "agent": map[bool]string{true: "true"}[up.Agent], "source": up.Source, "step": up.Step, "over": strings.Join(up.Over, ","), "on_start_user": up.OnStart.GetUser()} {
		if v != "" {
			q.Set(k, v)
		}
	}
	if o := up.OnStart; o != nil {
		q["on_start"] = o.GetArgv()
		if t := o.GetTimeoutSeconds(); t > 0 {
			q.Set("on_start_timeout", strconv.FormatFloat(t, 'g', -1, 64))
		}
	}
	resp, err := c.do(ctx, http.MethodPut, "/v1/layers", q, tar)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		msg := &dsecv1.ImportLayerResponse{}
		if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(lines.Bytes(), msg); err != nil {
			return nil, fmt.Errorf("read import's answer: %w", err)
		}
		if e := msg.GetError(); e != nil {
			return nil, wireError{Code: e.GetCode(), Message: e.GetMessage()}.err()
		}
		if msg.GetLayer() != nil {
			return msg, nil
		}
		if progress != nil && msg.GetProgress() != nil {
			progress(msg.GetProgress())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read import's answer: %w", c.explain(err))
	}
	return nil, fmt.Errorf("import ended without a layer: %w", io.ErrUnexpectedEOF)
}
