package e2b

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"connectrpc.com/connect"

	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/cluster/e2b/envd/filesystem/filesystemconnect"
	"github.com/opendsec/dsec/cluster/e2b/envd/process/processconnect"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/sandbox"
)

const (
	// envdPort is where clients expect the daemon that runs their programs.
	envdPort = 49983
	// envdVersion switches features of clients on: from 0.6.2 on metadata of files, from 0.6.3 on entries in events, from 0.6.4
	// on watching network file systems, of which there are none here.
	envdVersion = "0.6.4"
	// maxBody bounds a request of the control face, maxMessage one of the two services.
	maxBody    = 4 << 20
	maxMessage = 16 << 20
)

// Keys checks API keys and derives tokens.
type Keys interface {
	Authenticate(ctx context.Context, presented string) (iam.Key, error)
	SandboxToken(ctx context.Context, purpose string, id sandbox.ID) (string, error)
}

// Options of a Door.
type Options struct {
	// API serves our own API to this process; it takes requests as authenticated.
	API http.RoundTripper
	// WithKey says with which key a request of ours is made.
	WithKey func(context.Context, iam.Key) context.Context
	Keys    Keys
	// Dial connects to a port of a sandbox.
	Dial func(ctx context.Context, id sandbox.ID, port uint16) (net.Conn, error)
	// Domain is what clients put behind PORT-ID. to reach a port; it may carry a port.
	Domain string
	// Scratch is a directory of this service alone, for files and records of templates that are being built.
	Scratch string
	Log     *slog.Logger
}

// Door serves both faces.
type Door struct {
	o            Options
	http         *http.Client
	sandboxes    dsecv1connect.SandboxServiceClient
	commands     dsecv1connect.CommandServiceClient
	files        dsecv1connect.FileServiceClient
	snapshots    dsecv1connect.SnapshotServiceClient
	environments dsecv1connect.EnvironmentServiceClient
	layers       dsecv1connect.LayerServiceClient

	control  http.Handler
	envd     http.Handler
	ports    http.Handler
	names    names
	access   access
	watchers watchers
	builds   builds
	uploads  uploads
}

// apiURL is never dialled.
const apiURL = "http://api"

// New makes a Door.
func New(o Options) *Door {
	d := &Door{o: o, http: &http.Client{Transport: o.API}, uploads: uploads{dir: filepath.Join(o.Scratch, "uploads"), byToken: map[string]*upload{}}}
	d.builds = builds{dir: filepath.Join(o.Scratch, "builds"), log: o.Log, byID: map[string]*templateBuild{}}
	plain := connect.WithAcceptCompression("gzip", nil, nil)
	d.sandboxes = dsecv1connect.NewSandboxServiceClient(d.http, apiURL, plain)
	d.commands = dsecv1connect.NewCommandServiceClient(d.http, apiURL, plain)
	d.files = dsecv1connect.NewFileServiceClient(d.http, apiURL, plain)
	d.snapshots = dsecv1connect.NewSnapshotServiceClient(d.http, apiURL, plain)
	d.environments = dsecv1connect.NewEnvironmentServiceClient(d.http, apiURL, plain)
	d.layers = dsecv1connect.NewLayerServiceClient(d.http, apiURL, plain)
	d.control = d.controlRoutes()
	d.envd = d.envdRoutes()
	d.ports = d.portProxy()
	d.takeUp()
	return d
}

// takeUp goes on with what an earlier process kept.
func (d *Door) takeUp() {
	if err := os.RemoveAll(d.contexts()); err != nil {
		d.o.Log.Warn("empty the directory of templates' contexts", "err", err)
	}
	if err := d.uploads.load(); err != nil {
		d.o.Log.Warn("read the files of templates", "err", err)
	}
	broken, err := d.builds.load()
	if err != nil {
		d.o.Log.Warn("read the builds of templates", "err", err)
	}
	if len(broken) > 0 {
		go d.clear(context.Background(), broken) // bounded by its patience
	}
}

// contexts is where files of templates are unpacked while they are built.
func (d *Door) contexts() string { return filepath.Join(d.o.Scratch, "contexts") }

// envdRoutes is what is served as port 49983 of every sandbox.
func (d *Door) envdRoutes() http.Handler {
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage), connect.WithCompressMinBytes(32 << 10)}
	services := http.NewServeMux()
	services.Handle(processconnect.NewProcessHandler(process{d: d}, opts...))
	services.Handle(filesystemconnect.NewFilesystemHandler(filesystem{d: d}, opts...))
	services.HandleFunc("GET /envs", d.envs)
	services.HandleFunc("GET /metrics", d.insideMetrics)
	services.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeData(w, r, refused(http.StatusNotFound, "there is no %s %s", r.Method, r.URL.Path))
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", d.health)
	mux.HandleFunc("GET /files", d.readFile)
	mux.HandleFunc("POST /files", d.writeFiles)
	mux.Handle("/", d.admitted(services))
	return mux
}
