package edge

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/api/strictjson"
	"github.com/opendsec/dsec/sandbox"
)

// maxRequest bounds one request message, for example the whole stdin of a command.
const maxRequest = 16 << 20

// Handler serves the edge's API. It authenticates nobody: it is for API servers, over a socket of mode 0600.
func (e *Edge) Handler() http.Handler {
	mux := http.NewServeMux()
	boxes := &sandboxAPI{e: e}
	opts := []connect.HandlerOption{connect.WithReadMaxBytes(maxRequest), strictjson.Option()}
	mount := func(path string, h http.Handler) { mux.Handle(path, bounded(h)) }
	mount(dsecv1connect.NewSandboxServiceHandler(boxes, opts...))
	mount(dsecv1connect.NewEdgeServiceHandler(boxes, opts...))
	mount(dsecv1connect.NewSnapshotServiceHandler(&snapshotAPI{e: e}, opts...))
	mount(dsecv1connect.NewCommandServiceHandler(&commandAPI{e}, opts...))
	mount(dsecv1connect.NewFileServiceHandler(&fileAPI{e}, opts...))
	mount(dsecv1connect.NewNodeServiceHandler(&nodeAPI{e}, opts...))
	mount(dsecv1connect.NewScreenServiceHandler(&screenAPI{e}, opts...))
	t := &transfers{e: e}
	mux.HandleFunc("GET /v1/sandboxes/{id}/files", t.read)
	mux.HandleFunc("PUT /v1/sandboxes/{id}/files", t.write)
	mux.HandleFunc("GET /v1/sandboxes/{id}/archive", t.pack)
	mux.HandleFunc("PUT /v1/sandboxes/{id}/archive", t.unpack)
	mux.HandleFunc("GET /v1/sandboxes/{id}/tcp/{port}", t.tcp)
	mux.HandleFunc("GET /v1/sandboxes/{id}/screen/vnc", t.vnc)
	return mux
}

// bounded refuses a request that says that it is too large before a byte of it is read, and says what to do.
func bounded(h http.Handler) http.Handler {
	ew := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > maxRequest {
			err := connect.NewError(connect.CodeInvalidArgument, errors.New(tooLarge(r)))
			if !ew.IsSupported(r) || ew.Write(w, r, err) != nil {
				http.Error(w, tooLarge(r), http.StatusRequestEntityTooLarge)
			}
			return
		}
		h.ServeHTTP(w, r)
	})
}

func tooLarge(r *http.Request) string {
	hint := ""
	if strings.HasPrefix(r.URL.Path, "/dsec.v1.CommandService/") {
		hint = fmt.Sprintf("; arguments and environment of a command have at most %d bytes, larger data goes into a file", maxArgs)
	}
	return fmt.Sprintf("request of %d bytes: %v: at most %d are taken%s", r.ContentLength, sandbox.ErrInvalid, maxRequest, hint)
}
