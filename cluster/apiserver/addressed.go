package apiserver

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"
	"github.com/opendsec/dsec/sandbox"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// addressed answers what is not a call of the API before anything looks at its body: a method that its service does not
// have, another HTTP method than POST, a content type of no protocol. What answers further on says nothing of the first that
// helps, and of the other two nothing at all.
func (s *Server) addressed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service, method, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		d, _ := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		found, ok := d.(protoreflect.ServiceDescriptor)
		if !ok { // a plain path, or nothing
			next.ServeHTTP(w, r)
			return
		}
		m := found.Methods().ByName(protoreflect.Name(method))
		if m == nil {
			s.unknownPath(w, r)
			return
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			s.refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("%.10s %s: %w: want POST", r.Method, r.URL.Path, sandbox.ErrInvalid))
			return
		}
		if types := contentTypes(m.IsStreamingServer() || m.IsStreamingClient()); !slices.Contains(types, mediaType(r)) {
			w.Header().Set("Accept-Post", strings.Join(types, ", "))
			hint := "want Content-Type: application/json (curl -H 'Content-Type: application/json')"
			if m.IsStreamingServer() {
				hint = "it streams: want Content-Type: application/connect+json, and each message behind a byte of flags and four of its length"
			}
			s.refuse(w, http.StatusUnsupportedMediaType, fmt.Errorf("%s: content type %.80q: %w: %s", r.URL.Path, r.Header.Get("Content-Type"), sandbox.ErrInvalid, hint))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mediaType is the content type without parameters; Connect looks at those.
func mediaType(r *http.Request) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// contentTypes of the protocols that the API speaks.
func contentTypes(stream bool) []string {
	own := []string{"application/json", "application/proto"}
	if stream {
		own = []string{"application/connect+json", "application/connect+proto"}
	}
	for _, p := range []string{"application/grpc", "application/grpc-web"} {
		own = append(own, p, p+"+proto", p+"+json")
	}
	return own
}

// refuse answers a request of no protocol in plain JSON, under a status that Connect has no code for.
func (s *Server) refuse(w http.ResponseWriter, status int, err error) {
	code := connect.CodeInvalidArgument
	s.metrics.failures.WithLabelValues(code.String()).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	text, _ := json.Marshal(map[string]string{"code": code.String(), "message": err.Error()})
	w.Header().Set("Content-Length", strconv.Itoa(len(text))) // whole, also before the request's body was read
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client is gone
}
