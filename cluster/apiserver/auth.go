package apiserver

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/opendsec/dsec/cluster/iam"
	"github.com/opendsec/dsec/cluster/netrules"
)

type keyInContext struct{}

// keyOf returns the key that a request was made with.
func keyOf(ctx context.Context) iam.Key {
	k, _ := ctx.Value(keyInContext{}).(iam.Key)
	return k
}

// projectOf returns the project of that key.
func projectOf(ctx context.Context) string {
	return cmp.Or(keyOf(ctx).Project, netrules.DefaultProject)
}

// credentialHeaders never travel beyond the API server.
var credentialHeaders = []string{"Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization"}

// presented returns the key in `Authorization: Bearer KEY` or `X-API-Key: KEY`.
func presented(r *http.Request) string {
	if scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(key)
	}
	return r.Header.Get("X-Api-Key")
}

// authenticated lets a request with a good key through; its body is not read before that.
func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k, err := s.o.Keys.Authenticate(r.Context(), presented(r))
		if err != nil {
			// What the client goes on sending is not worth reading.
			w.Header().Set("Connection", "close")
			s.writeError(w, r, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyInContext{}, k)))
	})
}
