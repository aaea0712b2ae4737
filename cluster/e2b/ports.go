package e2b

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/cluster/apiserver"
	"github.com/opendsec/dsec/sandbox"
)

const (
	headerTraffic = "E2b-Traffic-Access-Token"
	// interpreterPort is where clients of the code interpreter have their code run: interpreter/server.py, in templates that have it.
	interpreterPort = 49999
	// idlePort is short: a connection that stays open counts as activity of the sandbox.
	idlePort   = 5 * time.Second
	accessLife = 5 * time.Second
	maxAccess  = 4096
)

// access remembers for moments who may reach the ports of a sandbox: its labels, which do not change.
type access struct {
	mu   sync.Mutex
	open map[sandbox.ID]seen
}

type seen struct {
	at      time.Time
	private bool
}

// portProxy passes requests on to a program in the sandbox. As clients expect it, everybody may reach the ports of a
// sandbox that was made through this door, unless it was made with allowPublicTraffic=false; those of others nobody.
func (d *Door) portProxy() http.Handler {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			host, _, _ := net.SplitHostPort(addr)
			port, id, _ := strings.Cut(host, "-")
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, err
			}
			return d.o.Dial(ctx, sandbox.ID(id), uint16(n))
		},
		MaxIdleConnsPerHost: 4,
		MaxIdleConns:        1024,
		IdleConnTimeout:     idlePort,
		DisableCompression:  true,
	}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(d.o.Log.Handler(), slog.LevelDebug),
		Rewrite: func(r *httputil.ProxyRequest) {
			t := targetOf(r.In.Context())
			r.Out.URL.Scheme, r.Out.URL.Host = "http", strconv.Itoa(int(t.port))+"-"+string(t.id)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
			for _, h := range []string{headerTraffic, headerToken, headerSandbox, headerPort} {
				r.Out.Header.Del(h)
			}
			apiserver.StripCredentials(r.Out, "")
		},
		ErrorHandler: writeData,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := d.admitTraffic(r); err != nil {
			writeData(w, r, err)
			return
		}
		proxy.ServeHTTP(w, r)
	})
}

func (d *Door) admitTraffic(r *http.Request) error {
	t := targetOf(r.Context())
	private, err := d.isPrivate(r.Context(), t.id)
	if err != nil {
		return err
	}
	if t.port == interpreterPort && r.URL.Path == "/execute" {
		// Whoever runs code there has all that the sandbox has. Clients send the token with this request alone.
		return d.admit(r)
	}
	if !private {
		return nil
	}
	want, err := d.o.Keys.SandboxToken(r.Context(), purposeTraffic, t.id)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(want), []byte(r.Header.Get(headerTraffic))) != 1 {
		return refused(http.StatusForbidden, "the ports of sandbox %s need its traffic access token (header %s)", t.id, headerTraffic)
	}
	return nil
}

func (d *Door) isPrivate(ctx context.Context, id sandbox.ID) (bool, error) {
	d.access.mu.Lock()
	known, ok := d.access.open[id]
	d.access.mu.Unlock()
	if ok && time.Since(known.at) < accessLife {
		return known.private, nil
	}
	resp, err := d.sandboxes.GetSandbox(ctx, &dsecv1.GetSandboxRequest{SandboxId: string(id)})
	if err != nil {
		return false, err
	}
	labels := resp.GetSandbox().GetSpec().GetLabels()
	private := labels[labelPrivate] == "true" || labels[labelTemplate] == ""
	d.access.mu.Lock()
	defer d.access.mu.Unlock()
	if d.access.open == nil || len(d.access.open) >= maxAccess {
		d.access.open = map[sandbox.ID]seen{}
	}
	d.access.open[id] = seen{time.Now(), private}
	return private, nil
}
