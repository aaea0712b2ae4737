package e2b

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/opendsec/dsec/sandbox"
)

const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerToken   = "X-Access-Token"
)

// Purposes of the tokens of a sandbox.
const (
	purposeEnvd    = "e2b envd"
	purposeTraffic = "e2b traffic"
)

// target is what a request of the data face is about, and as whom.
type target struct {
	id   sandbox.ID
	port uint16
	user string // "" = the sandbox's default
}

type targetKey struct{}

func targetOf(ctx context.Context) target {
	t, _ := ctx.Value(targetKey{}).(target)
	return t
}

// ServeHTTP tells the faces apart.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, data, err := routed(r)
	switch {
	case err != nil:
		writeData(w, r, err)
	case !data:
		d.control.ServeHTTP(w, r)
	default:
		r = r.WithContext(context.WithValue(r.Context(), targetKey{}, t))
		if t.port == envdPort {
			d.envd.ServeHTTP(w, r)
		} else {
			d.ports.ServeHTTP(w, r)
		}
	}
}

// routed reads the sandbox and port that a request is for: from the host PORT-ID.DOMAIN, else from two headers, which
// are heeded for localhost, addresses and sandbox.DOMAIN only: on a host of its own a sandbox's pages could otherwise reach others.
func routed(r *http.Request) (t target, data bool, err error) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	port, id, ok := "", "", false
	label, _, _ := strings.Cut(host, ".")
	if port, id, ok = strings.Cut(label, "-"); ok && isNumber(port) {
		data = true
	} else if id = r.Header.Get(headerSandbox); id != "" {
		if host != "localhost" && net.ParseIP(strings.Trim(host, "[]")) == nil && !strings.HasPrefix(host, "sandbox.") {
			return t, false, refused(http.StatusBadRequest, "the headers %s and %s are heeded on localhost, an address, or sandbox.DOMAIN, not on %.100s", headerSandbox, headerPort, host)
		}
		port, data = r.Header.Get(headerPort), true
		if port == "" {
			port = strconv.Itoa(envdPort)
		}
	}
	if !data {
		return t, false, nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return t, true, refused(http.StatusBadRequest, "port %.20q: want 1 to 65535", port)
	}
	sid, err := sandbox.ParseID(id)
	if err != nil {
		return t, true, refused(http.StatusBadGateway, "sandbox %.40q was not found: it is no sandbox's id", id)
	}
	t = target{id: sid, port: uint16(n), user: basicUser(r)}
	if !utf8.ValidString(t.user) {
		return t, true, refused(http.StatusUnauthorized, "invalid username: %.40q is not UTF-8", t.user)
	}
	return t, true, nil
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// basicUser is the Unix user that clients name as `Authorization: Basic base64("USER:")`.
func basicUser(r *http.Request) string {
	scheme, text, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "basic") {
		return ""
	}
	b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	if err != nil {
		return ""
	}
	user, _, _ := strings.Cut(string(b), ":")
	return user
}

// admit checks the token of a request.
func (d *Door) admit(r *http.Request) error {
	t := targetOf(r.Context())
	want, err := d.o.Keys.SandboxToken(r.Context(), purposeEnvd, t.id)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare([]byte(want), []byte(r.Header.Get(headerToken))) != 1 {
		return refused(http.StatusUnauthorized, "the access token (%s) is not that of sandbox %s: connect to it with an API key to get it", headerToken, t.id)
	}
	return nil
}

var connectErrors = connect.NewErrorWriter()

// admitted lets requests with the sandbox's token through.
func (d *Door) admitted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := d.admit(r)
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case connectErrors.IsSupported(r):
			code := connect.CodeUnauthenticated
			if statusOf(err) != http.StatusUnauthorized {
				code = connect.CodeUnavailable
			}
			_ = connectErrors.Write(w, r, connect.NewError(code, err))
		default:
			writeData(w, r, err)
		}
	})
}
