package apiserver

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/opendsec/dsec/cluster/iam"
)

// StripCredentials drops all that is the platform's from a request into a sandbox: its headers and cookies, the
// port token that the request was admitted by (empty for none), and whatever holds an API key, which was put there by mistake.
// Credentials of the application's own (Authorization, X-Api-Key, cookies) travel on. Bodies and paths are not
// looked at.
func StripCredentials(r *http.Request, token string) {
	for _, h := range []string{"Proxy-Authorization", headerSandbox, headerPort, headerToken, KeyHeader, ProjectHeader} {
		r.Header.Del(h)
	}
	foreign := func(v string) bool { return token != "" && strings.Contains(v, token) || holdsKey(v) }
	cookies := r.Cookies()
	r.Header.Del("Cookie")
	for _, c := range cookies {
		if !strings.HasPrefix(c.Name, cookiePrefix) && !foreign(c.Value) {
			r.AddCookie(c)
		}
	}
	for name, values := range r.Header {
		for _, v := range values {
			if foreign(v) {
				r.Header.Del(name)
				break
			}
		}
	}
	stripQuery(r.URL, foreign)
}

// stripQuery leaves a query as it was written unless something of it must go.
func stripQuery(u *url.URL, foreign func(string) bool) {
	q := u.Query()
	changed := q.Has(tokenName)
	q.Del(tokenName)
	for name, values := range q {
		for _, v := range values {
			if foreign(v) {
				q.Del(name)
				changed = true
				break
			}
		}
	}
	if changed {
		u.RawQuery = q.Encode()
	}
}

func withoutToken(q url.Values) string {
	q.Del(tokenName)
	return q.Encode()
}

// holdsKey tells whether a value holds an API key: as it is, in other case, or as name or password of HTTP's Basic
// scheme.
func holdsKey(v string) bool {
	if iam.ContainsKey(strings.ToLower(v)) {
		return true
	}
	scheme, rest, ok := strings.Cut(strings.TrimSpace(v), " ")
	if !ok || !strings.EqualFold(scheme, "Basic") {
		return false
	}
	rest = strings.TrimRight(strings.TrimSpace(rest), "=")
	plain, err := base64.RawStdEncoding.DecodeString(rest)
	if err != nil {
		plain, err = base64.RawURLEncoding.DecodeString(rest)
	}
	// What nobody can decode may hide anything.
	return err != nil || iam.ContainsKey(strings.ToLower(string(plain)))
}
