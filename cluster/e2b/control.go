package e2b

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// controlRoutes is the control face. Paths with and without /v2 are those of newer and older clients.
func (d *Door) controlRoutes() http.Handler {
	keyed := http.NewServeMux()
	handle := func(pattern string, h func(http.ResponseWriter, *http.Request) error) {
		keyed.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				writeControl(w, err)
			}
		})
	}
	handle("POST /sandboxes", func(w http.ResponseWriter, r *http.Request) error { return d.create(w, r, oldTimeout) })
	handle("POST /v2/sandboxes", func(w http.ResponseWriter, r *http.Request) error { return d.create(w, r, defaultTimeout) })
	for _, v := range []string{"", "/v2"} {
		handle("GET "+v+"/sandboxes", d.list)
		handle("POST "+v+"/sandboxes/{id}/connect", d.connect)
		handle("GET "+v+"/sandboxes/{id}/logs", d.logs)
		handle("GET "+v+"/templates", d.listTemplates)
	}
	handle("GET /sandboxes/{id}", d.info)
	handle("DELETE /sandboxes/{id}", d.kill)
	handle("POST /sandboxes/{id}/pause", d.pause)
	handle("POST /sandboxes/{id}/resume", d.resume)
	handle("POST /sandboxes/{id}/timeout", d.setTimeout)
	handle("POST /sandboxes/{id}/refreshes", d.refresh)
	handle("PUT /sandboxes/{id}/network", d.setNetwork)
	handle("POST /sandboxes/{id}/fork", d.fork)
	handle("POST /sandboxes/{id}/snapshots", d.snapshot)
	handle("GET /snapshots", d.listSnapshots)
	handle("GET /sandboxes/{id}/metrics", d.metrics)
	handle("GET /sandboxes/metrics", d.metricsOfMany)
	handle("GET /templates/aliases/{alias}", d.alias)
	handle("POST /v3/templates", d.newTemplate)
	handle("POST /v2/templates", d.newTemplate)
	handle("POST /v2/templates/{id}/builds/{build}", d.startBuild)
	handle("GET /templates/{id}/builds/{build}/status", d.buildStatus)
	handle("GET /templates/{id}/files/{hash}", d.templateFiles)
	handle("GET /templates/{id}/{what}", func(w http.ResponseWriter, r *http.Request) error { // beside aliases/{alias}
		if r.PathValue("what") != "tags" {
			return unsupported("%s %.200s (docs/e2b.md lists what is)", r.Method, r.URL.Path)
		}
		return d.listTags(w, r)
	})
	handle("POST /templates/tags", d.assignTags)
	handle("DELETE /templates/tags", d.removeTags)
	handle("PATCH /templates/{id}", d.patchTemplate)
	handle("PATCH /v2/templates/{id}", d.patchTemplate)
	handle("GET /templates/{id}", d.template)
	handle("DELETE /templates/{id...}", d.deleteTemplate)
	handle("/", func(_ http.ResponseWriter, r *http.Request) error {
		for _, p := range refusedPaths {
			if strings.HasPrefix(r.URL.Path, p) {
				return unsupported("%s %.200s (docs/e2b.md lists what is)", r.Method, r.URL.Path)
			}
		}
		return refused(http.StatusNotFound, "%.10s %.200s: this service does not have it (docs/e2b.md lists what it has)", r.Method, r.URL.Path)
	})

	open := http.NewServeMux()
	open.HandleFunc("PUT "+uploadPath+"{token}", d.uploads.take)
	open.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		k, err := d.o.Keys.Authenticate(r.Context(), presented(r))
		if err != nil {
			w.Header().Set("Connection", "close")
			if errors.Is(err, sandbox.ErrUnauthenticated) {
				err = refused(http.StatusUnauthorized, "%v; for clients of this door: E2B_API_KEY=$(dsec key create --e2b)", err)
			}
			writeControl(w, err)
			return
		}
		if err := checkText(r.URL); err != nil {
			writeControl(w, err)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		keyed.ServeHTTP(w, r.WithContext(d.o.WithKey(r.Context(), k)))
	})
	return open
}

// refusedPaths are known to clients and not served here.
var refusedPaths = []string{"/v3/templates", "/v2/templates", "/templates", "/volumes", "/secrets", "/api-keys", "/access-tokens", "/teams", "/v2/sandboxes", "/sandboxes"}

// presented is the API key of a request.
func presented(r *http.Request) string {
	if k := r.Header.Get("X-Api-Key"); k != "" {
		return k
	}
	if scheme, k, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(k)
	}
	return ""
}

// checkText refuses addresses that are not UTF-8: on the control face all of them are text.
func checkText(u *url.URL) error {
	query, err := url.QueryUnescape(u.RawQuery)
	if err != nil || !utf8.ValidString(query) || !utf8.ValidString(u.Path) {
		return refused(http.StatusBadRequest, "the address is not UTF-8, or not well escaped")
	}
	return nil
}

// readJSON reads a body that may be empty.
func readJSON(r *http.Request, into any) error {
	b, err := io.ReadAll(r.Body)
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return refused(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", long.Limit)
	case err != nil:
		return refused(http.StatusBadRequest, "the body broke off: %v", err)
	case len(strings.TrimSpace(string(b))) == 0:
		return nil
	}
	if !utf8.Valid(b) { // which the decoder would change silently
		return refused(http.StatusBadRequest, "the body is not UTF-8")
	}
	if err := json.Unmarshal(b, into); err != nil {
		return refused(http.StatusBadRequest, "the body is not the JSON that is expected: %v", err)
	}
	return nil
}

// sandboxOf returns the sandbox of a path while it lives. Errors: 404.
func (d *Door) sandboxOf(r *http.Request) (*dsecv1.Sandbox, error) {
	id := r.PathValue("id")
	if _, err := sandbox.ParseID(id); err != nil {
		return nil, refused(http.StatusNotFound, "sandbox %.40q was not found: it is no sandbox's id", id)
	}
	resp, err := d.sandboxes.GetSandbox(r.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
	if err != nil {
		return nil, err
	}
	b := resp.GetSandbox()
	if s := b.GetState(); s == dsecv1.SandboxState_SANDBOX_STATE_STOPPED || s == dsecv1.SandboxState_SANDBOX_STATE_STOPPING {
		return nil, refused(http.StatusNotFound, "sandbox %s was not found: it has ended (%s: %s)", id, b.GetEnd().GetKind(), b.GetEnd().GetMessage())
	}
	return b, nil
}
