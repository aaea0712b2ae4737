package client

import (
	"crypto/rand"
	"encoding/base32"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
)

// Options of a Client.
type Options struct {
	// Config; its zero value = LoadConfig.
	Config Config
	// Patience is how long safe calls and broken streams are tried again; 0 = 2 minutes.
	Patience time.Duration
	// FirstContact is Patience until the service has answered once; 0 = 2 seconds.
	FirstContact time.Duration
	// Transport carries requests in place of connections of its own, and says who makes them; nil = HTTP with Config's key.
	Transport http.RoundTripper
}

// Client calls one service. Its methods are safe for concurrent use.
type Client struct {
	Sandboxes dsecv1connect.SandboxServiceClient
	Commands  dsecv1connect.CommandServiceClient
	Files     dsecv1connect.FileServiceClient
	Layers    dsecv1connect.LayerServiceClient
	Snapshots dsecv1connect.SnapshotServiceClient // see Fork and PackDiff
	Keys      dsecv1connect.KeyServiceClient
	Node      dsecv1connect.NodeServiceClient
	Screens   dsecv1connect.ScreenServiceClient // see DialScreen
	Calls     dsecv1connect.FnCallServiceClient // see Call, CallBatch and JudgeBatch
	// NetworkDefaults are policies beside names of the catalogue.
	NetworkDefaults dsecv1connect.NetworkDefaultServiceClient
	// Environments are named stacks of layers.
	Environments dsecv1connect.EnvironmentServiceClient

	o       Options
	base    *url.URL
	http    *http.Client
	reached atomic.Bool // the service has answered at least once
}

// New makes a Client; it does not connect.
func New(o Options) (*Client, error) {
	if o.Config == (Config{}) {
		var err error
		if o.Config, err = LoadConfig(); err != nil {
			return nil, err
		}
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Minute
	}
	if o.FirstContact == 0 {
		o.FirstContact = 2 * time.Second
	}
	o.Config = o.Config.trimmed()
	if err := checkKey(o.Config.Key); err != nil {
		return nil, err
	}
	base, err := url.Parse(strings.TrimRight(o.Config.URL, "/"))
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("service URL %q: want http://HOST:PORT or https://HOST (DSEC_URL)", o.Config.URL)
	}
	c := &Client{o: o, base: base}
	c.http = &http.Client{Transport: &keyed{key: o.Config.Key, next: &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 1024,
		MaxIdleConns:        1024,
		IdleConnTimeout:     90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second,
		DisableCompression:  true,
	}}}
	if o.Transport != nil {
		c.http = &http.Client{Transport: o.Transport}
	}
	// Plain answers: compressing a small one costs the server more than sending it.
	opts := connect.WithClientOptions(connect.WithInterceptors(&retry{c: c}), connect.WithAcceptCompression("gzip", nil, nil))
	s := base.String()
	c.Sandboxes = dsecv1connect.NewSandboxServiceClient(c.http, s, opts)
	c.Commands = dsecv1connect.NewCommandServiceClient(c.http, s, opts)
	c.Files = dsecv1connect.NewFileServiceClient(c.http, s, opts)
	c.Layers = dsecv1connect.NewLayerServiceClient(c.http, s, opts)
	c.Snapshots = dsecv1connect.NewSnapshotServiceClient(c.http, s, opts)
	c.Environments = dsecv1connect.NewEnvironmentServiceClient(c.http, s, opts)
	c.Keys = dsecv1connect.NewKeyServiceClient(c.http, s, opts)
	c.Node = dsecv1connect.NewNodeServiceClient(c.http, s, opts)
	c.Screens = dsecv1connect.NewScreenServiceClient(c.http, s, opts)
	c.Calls = dsecv1connect.NewFnCallServiceClient(c.http, s, opts)
	c.NetworkDefaults = dsecv1connect.NewNetworkDefaultServiceClient(c.http, s, opts)
	return c, nil
}

// URL of the service.
func (c *Client) URL() string { return c.base.String() }

// keyed adds the key to every request.
type keyed struct {
	key  string
	next http.RoundTripper
}

func (k *keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	if k.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+k.key)
	}
	return k.next.RoundTrip(r)
}

// CloseIdleConnections lets http.Client.CloseIdleConnections through.
func (k *keyed) CloseIdleConnections() {
	k.next.(*http.Transport).CloseIdleConnections()
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// NewOperationID draws an id for a command or creation, so that asking again does nothing twice.
func NewOperationID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand crashes the program instead
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}
