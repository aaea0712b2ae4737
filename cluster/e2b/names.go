package e2b

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

const (
	namesLife = 3 * time.Second
	maxNames  = 1024    // sandboxes
	maxPasswd = 1 << 20 // bytes of one file
	maxUsers  = 10_000
)

// names remembers for moments what users and groups of sandboxes are called: every entry of a listing has both. They are
// read from the sandbox, which may write there what it likes: they are words for its own client and nothing else.
type names struct {
	mu   sync.Mutex
	read map[sandbox.ID]*namesOf
}

// namesOf is one sandbox's.
type namesOf struct {
	at     time.Time
	users  map[uint32]string
	groups map[uint32]string
	homes  map[string]string // by name and by number
}

// namesIn reads /etc/passwd and /etc/group of the sandbox of a request; one that it does not have is empty. Errors are those of
// reading: without an answer nobody knows where a home is, and a path from there would lead elsewhere.
func (d *Door) namesIn(ctx context.Context) (*namesOf, error) {
	id := targetOf(ctx).id
	d.names.mu.Lock()
	n := d.names.read[id]
	d.names.mu.Unlock()
	if n != nil && time.Since(n.at) < namesLife {
		return n, nil
	}
	passwd, err := d.small(ctx, "/etc/passwd")
	if err != nil {
		return nil, err
	}
	group, err := d.small(ctx, "/etc/group")
	if err != nil {
		return nil, err
	}
	n = &namesOf{at: time.Now(), users: map[uint32]string{}, groups: map[uint32]string{}, homes: map[string]string{}}
	each(passwd, func(f []string) {
		uid, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || len(f) < 6 {
			return
		}
		if n.users[uint32(uid)] == "" {
			n.users[uint32(uid)], n.homes[f[2]] = f[0], f[5]
		}
		n.homes[f[0]] = f[5]
	})
	each(group, func(f []string) {
		if gid, err := strconv.ParseUint(f[2], 10, 32); err == nil && n.groups[uint32(gid)] == "" {
			n.groups[uint32(gid)] = f[0]
		}
	})
	d.names.mu.Lock()
	defer d.names.mu.Unlock()
	if d.names.read == nil || len(d.names.read) >= maxNames {
		d.names.read = map[sandbox.ID]*namesOf{}
	}
	d.names.read[id] = n
	return n, nil
}

// each calls fn with the fields of every line that has three or more.
func each(b []byte, fn func(fields []string)) {
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 0; lines.Scan() && n < maxUsers; n++ {
		if f := strings.Split(strings.ToValidUTF8(lines.Text(), "?"), ":"); len(f) >= 3 && f[0] != "" {
			fn(f)
		}
	}
}

// small reads the beginning of a file as root: nothing where the sandbox has none, or has something else there.
func (d *Door) small(ctx context.Context, name string) ([]byte, error) {
	resp, err := d.get(ctx, url.Values{"path": {name}, "user": {"0:0"}, "length": {strconv.Itoa(maxPasswd)}})
	if err != nil {
		c := connect.CodeOf(err)
		if !gone(err) && (c == connect.CodeNotFound || c == connect.CodeInvalidArgument || c == connect.CodePermissionDenied) {
			return nil, nil
		}
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxPasswd))
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("%s of the sandbox could not be read to its end (nothing was done): try again: %w", name, err))
	}
	return b, nil
}

// get reads a file of the sandbox of a request.
func (d *Door) get(ctx context.Context, q url.Values) (*http.Response, error) {
	return d.do(ctx, http.MethodGet, q, nil)
}

// do calls the API on file contents. The caller closes the body of an answer of 200.
func (d *Door) do(ctx context.Context, method string, q url.Values, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, apiURL+"/v1/sandboxes/"+string(targetOf(ctx).id)+"/files?"+q.Encode(), body)
	if err != nil {
		return nil, refused(http.StatusBadRequest, "%v", err)
	}
	resp, err := d.http.Do(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, fileError(resp)
	}
	return resp, nil
}

func (n *namesOf) user(uid uint32) string {
	return cmp.Or(n.users[uid], strconv.FormatUint(uint64(uid), 10))
}

func (n *namesOf) group(gid uint32) string {
	return cmp.Or(n.groups[gid], strconv.FormatUint(uint64(gid), 10))
}

// absolute resolves a path as clients mean it: from the user's home, with ~ for it.
func (d *Door) absolute(ctx context.Context, p, user string) (string, error) {
	switch {
	case strings.ContainsRune(p, 0):
		return "", refused(http.StatusBadRequest, "the path holds a NUL byte")
	case strings.HasPrefix(p, "/"):
		return path.Clean(p), nil
	}
	if rest, ok := strings.CutPrefix(p, "~"); ok && (rest == "" || rest[0] == '/') {
		p = strings.TrimPrefix(rest, "/")
	}
	if user == "" {
		resp, err := d.sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: string(targetOf(ctx).id)})
		if err != nil {
			return "", err
		}
		user = cmp.Or(resp.GetSandbox().GetSpec().GetUser(), "root")
	}
	user, _, _ = strings.Cut(user, ":")
	n, err := d.namesIn(ctx)
	if err != nil {
		return "", err
	}
	home := n.homes[user]
	if !strings.HasPrefix(home, "/") {
		home = "/"
	}
	return path.Join(home, p), nil
}
