package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/api/strictjson"
	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/cluster/netrules"
	"github.com/opendsec/dsec/sandbox"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// minCompressed is the size from which an answer is worth compressing, bytes.
const minCompressed = 32 << 10

// Options of a Server.
type Options struct {
	// Edges are the endpoints of the edges: unix:///path or http://host:port.
	Edges []string
	// Importer is the endpoint of blobd, which imports layers. Empty = importing is unavailable.
	Importer  string
	Keys      *iam.Store
	Catalogue Catalogue
	// Network keeps ceilings of projects and defaults of the catalogue; nil = there are none.
	Network *netrules.Store
	// Placement; nil = any edge that answers.
	Placement Placement
	// PortsURL is where Ports is reached, for the URLs that it hands out: http://HOST:PORT.
	PortsURL string
	// CollectGrace is how long the content of a layer without a name is kept, for creations that found it by its name a
	// moment before; 0 = 2 minutes.
	CollectGrace time.Duration
	// MaxInFlight bounds the requests being served, streams included; 0 = 20000.
	MaxInFlight int
	// Scratch is a directory for the contexts of builds; empty = the system's for temporary files.
	Scratch string
	Version string
	Log     *slog.Logger
}

// Server is one API server. Run must run while Handler and Ports serve.
type Server struct {
	o        Options
	edges    *Edges
	importer *importer
	errors   *connect.ErrorWriter
	metrics  *metrics
	slots    chan struct{}
	deleted  chan struct{} // a layer has lost a name
	builds   atomic.Int32  // under way

	nameless nameless

	api http.Handler // everything that needs a key
}

// New makes a Server. Error: ErrInvalid.
func New(o Options) (*Server, error) {
	if o.MaxInFlight == 0 {
		o.MaxInFlight = 20000
	}
	if o.CollectGrace == 0 {
		o.CollectGrace = 2 * time.Minute
	}
	s := &Server{o: o, errors: connect.NewErrorWriter(), metrics: newMetrics(), slots: make(chan struct{}, o.MaxInFlight), deleted: make(chan struct{}, 1)}
	if o.Scratch != "" { // builds end with the process that does them
		if err := os.RemoveAll(o.Scratch); err != nil {
			return nil, fmt.Errorf("clear contexts of builds: %w", err)
		}
	}
	var err error
	if s.edges, err = NewEdges(o.Edges); err != nil {
		return nil, err
	}
	for _, e := range s.edges.all {
		e.proxy = s.proxyTo(e)
	}
	if s.importer, err = newImporter(o.Importer); err != nil {
		return nil, err
	}
	if s.o.Placement == nil {
		s.o.Placement = anyEdge{s.edges}
	}
	s.api = s.routes()
	return s, nil
}

// Run keeps what the server knows about edges and keys fresh until ctx is done.
func (s *Server) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.edges.Run(ctx) })
	wg.Go(func() { s.o.Keys.Run(ctx) })
	if s.o.Network != nil {
		wg.Go(func() { s.o.Network.Run(ctx) })
		for _, e := range s.edges.All() {
			wg.Go(func() { s.tellCeilings(ctx, e) })
		}
	}
	if s.importer != nil {
		wg.Go(func() { s.collect(ctx) })
	}
	wg.Wait()
}

// routes is the API, for callers that are known.
func (s *Server) routes() http.Handler {
	api := http.NewServeMux()
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage), connect.WithCompressMinBytes(minCompressed), strictjson.Option()}

	path, sandboxes := dsecv1connect.NewSandboxServiceHandler(sandboxService{s: s}, opts...)
	api.HandleFunc(path, s.forwardRPC)
	for _, p := range []string{
		dsecv1connect.SandboxServiceCreateSandboxProcedure,
		dsecv1connect.SandboxServiceListSandboxesProcedure,
		dsecv1connect.SandboxServiceStopSandboxesProcedure,
	} {
		api.Handle(p, sandboxes)
	}
	api.HandleFunc(dsecv1connect.SandboxServiceStreamEventsProcedure, func(w http.ResponseWriter, r *http.Request) {
		switch id, err := s.peek(w, r); {
		case err != nil:
			s.writeError(w, r, err)
		case id != "":
			s.forwardTo(w, r, id)
		default:
			sandboxes.ServeHTTP(w, r)
		}
	})
	s.handleSnapshots(api, opts)
	api.HandleFunc("/"+dsecv1connect.CommandServiceName+"/", s.forwardRPC)
	api.HandleFunc("/"+dsecv1connect.FileServiceName+"/", s.forwardRPC)
	api.HandleFunc("/"+dsecv1connect.ScreenServiceName+"/", s.forwardRPC)
	api.HandleFunc("/"+dsecv1connect.NodeServiceName+"/", s.forwardNode)
	path, calls := dsecv1connect.NewFnCallServiceHandler(callService{s: s}, opts...)
	api.HandleFunc(path, s.forwardCall)
	api.Handle(dsecv1connect.FnCallServiceSetRuntimeProcedure, calls)
	api.HandleFunc("/v1/sandboxes/{id}/{rest...}", s.forwardPath)
	api.HandleFunc("GET /v1/sandboxes/{id}/tcp/{port}/url", s.portURL)
	path, layers := dsecv1connect.NewLayerServiceHandler(layerService{s: s}, opts...)
	api.Handle(path, layers)
	api.HandleFunc("PUT /v1/layers", s.uploadLayer)
	api.HandleFunc("PUT /v1/builds", s.buildImage)
	path, environments := dsecv1connect.NewEnvironmentServiceHandler(environmentService{s}, opts...)
	api.Handle(path, environments)
	path, keys := dsecv1connect.NewKeyServiceHandler(keyService{s}, opts...)
	api.Handle(path, keys)
	if s.o.Network != nil {
		api.Handle(dsecv1connect.NewNetworkDefaultServiceHandler(networkDefaults{s}, opts...))
	}
	api.HandleFunc("/", s.unknownPath)
	return s.addressed(api)
}

// Handler serves the API.
func (s *Server) Handler() http.Handler {
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	open.HandleFunc("GET /readyz", s.readyz)
	open.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))
	open.Handle("/", s.authenticated(s.api))
	return s.bounded(open)
}

// bounded refuses what is above MaxInFlight at once instead of queueing it.
func (s *Server) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case s.slots <- struct{}{}:
		default:
			s.writeError(w, r, fmt.Errorf("%w: %d requests are being served; try again", sandbox.ErrExhausted, s.o.MaxInFlight))
			return
		}
		s.metrics.inFlight.Inc()
		start := time.Now()
		defer func() {
			s.metrics.seconds.Observe(time.Since(start).Seconds())
			s.metrics.inFlight.Dec()
			<-s.slots
		}()
		next.ServeHTTP(w, r)
	})
}

func (s *Server) unknownPath(w http.ResponseWriter, r *http.Request) {
	s.writeError(w, r, fmt.Errorf("%.10s %.200s: %w: there is no such endpoint", r.Method, r.URL.Path, sandbox.ErrNotFound))
}

// forwardNode asks one edge: the one of ?edge=, else the first.
func (s *Server) forwardNode(w http.ResponseWriter, r *http.Request) {
	all := s.edges.All()
	if want := r.URL.Query().Get("edge"); want != "" {
		all = slices.DeleteFunc(slices.Clone(all), func(e *Edge) bool { return string(e.ID()) != want })
	}
	if len(all) == 0 {
		s.writeError(w, r, fmt.Errorf("edge: %w", sandbox.ErrNotFound))
		return
	}
	all[0].proxy.ServeHTTP(w, r)
}

// readyz answers 200 once keys can be checked and every edge and the importer answer, else 503 and what is
// missing.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	missing := map[string]string{}
	if !s.o.Keys.Ready() {
		missing["engine"] = "has not answered"
	}
	for _, e := range s.edges.All() {
		if err := e.probe(r.Context()); err != nil {
			missing["edge "+string(e.ID())] = "does not answer"
		}
	}
	if err := s.importer.up(r.Context()); err != nil {
		missing["importer"] = "does not answer"
	}
	if len(missing) > 0 {
		writeJSON(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "missing": missing})
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{"status": "ready", "version": s.o.Version})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}
