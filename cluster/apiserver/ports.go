package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/opendsec/dsec/internal/tcptunnel"
	"github.com/opendsec/dsec/sandbox"
)

// The ports' own origin. A request names sandbox and port by its host, <port>-<sandbox>.<any domain>, or by the
// two headers where there is no such name. It is admitted by a port token, which opens one port of one sandbox
// and nothing else: as header Dsec-Port-Token, as cookie, or once as ?dsec_port_token=, which is answered with
// the cookie. API keys are of no use here and never travel on; what else a request carries is the program's own business.
const (
	headerSandbox = "Dsec-Sandbox-Id"
	headerPort    = "Dsec-Sandbox-Port"
	headerToken   = "Dsec-Port-Token"
	tokenName     = "dsec_port_token"
	cookiePrefix  = "dsec_"

	defaultPortTokenLife = 12 * time.Hour
	maxPortTokenLife     = 7 * 24 * time.Hour
	// idleTunnel is short: a tunnel that stays open counts as activity of the sandbox.
	idleTunnel = 5 * time.Second
)

// portTarget is one port of one sandbox.
type portTarget struct {
	id   sandbox.ID
	port uint16
}

func (t portTarget) host() string { return strconv.Itoa(int(t.port)) + "-" + string(t.id) }

type targetInContext struct{}

// Ports serves the ports' origin.
func (s *Server) Ports() http.Handler {
	transport := &http.Transport{
		DialContext:           s.dialPort,
		MaxIdleConnsPerHost:   4,
		MaxIdleConns:          1024,
		IdleConnTimeout:       idleTunnel,
		ResponseHeaderTimeout: 0, // a program may think as long as it likes
		DisableCompression:    true,
	}
	proxy := &httputil.ReverseProxy{
		Transport:  transport,
		BufferPool: copyBuffers,
		ErrorLog:   log.New(discard{}, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			t := r.In.Context().Value(targetInContext{}).(portTarget)
			r.Out.URL.Scheme, r.Out.URL.Host = "http", t.host()
			r.Out.Host = r.In.Host
			r.SetXForwarded()
			token, _ := portToken(r.In)
			StripCredentials(r.Out, token)
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.portError(w, r, err)
		},
	}
	return s.bounded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, err := targetOf(r)
		if err != nil {
			s.portError(w, r, err)
			return
		}
		if done, err := s.admit(w, r, t); err != nil {
			s.portError(w, r, err)
			return
		} else if done {
			return
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetInContext{}, t)))
	}))
}

// targetOf reads host or headers. Error: ErrInvalid.
func targetOf(r *http.Request) (portTarget, error) {
	id, port := r.Header.Get(headerSandbox), r.Header.Get(headerPort)
	if id == "" {
		label, _, _ := strings.Cut(r.Host, ".")
		var ok bool
		if port, id, ok = strings.Cut(label, "-"); !ok {
			return portTarget{}, fmt.Errorf("host %.100q: %w: want <port>-<sandbox id>.<domain>, or the headers %s and %s",
				r.Host, sandbox.ErrInvalid, headerSandbox, headerPort)
		}
		id, _, _ = strings.Cut(id, ":")
	}
	return parseTarget(id, port)
}

func parseTarget(id, port string) (portTarget, error) {
	sid, err := sandbox.ParseID(id)
	if err != nil {
		return portTarget{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return portTarget{}, fmt.Errorf("port %.10q: %w: want 1 to 65535", port, sandbox.ErrInvalid)
	}
	return portTarget{sid, uint16(n)}, nil
}

// portToken is the token that a request brings, "" for none.
func portToken(r *http.Request) (token string, inQuery bool) {
	if token = r.Header.Get(headerToken); token != "" {
		return token, false
	}
	if token = r.URL.Query().Get(tokenName); token != "" {
		return token, true
	}
	if c, err := r.Cookie(tokenName); err == nil {
		return c.Value, false
	}
	return "", false
}

// admit checks the token. done: the answer was a redirect that sets the cookie.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, t portTarget) (done bool, err error) {
	token, inQuery := portToken(r)
	expires, err := s.o.Keys.CheckPortToken(r.Context(), token, t.id, t.port)
	if err != nil || !inQuery {
		return false, err
	}
	if r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" {
		return false, nil // a program, not a person: it goes through, without the token
	}
	// Keep it out of the address bar, and of Referer headers.
	http.SetCookie(w, &http.Cookie{Name: tokenName, Value: token, Path: "/", Expires: expires, HttpOnly: true, SameSite: http.SameSiteLaxMode})
	w.Header().Set("Referrer-Policy", "no-referrer")
	u := &url.URL{Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: withoutToken(r.URL.Query())}
	// "//host" would be another origin.
	http.Redirect(w, r, "/"+strings.TrimLeft(u.String(), "/"), http.StatusSeeOther)
	return true, nil
}

// dialPort opens a tunnel to the port that addr ("<port>-<sandbox>:80") names.
func (s *Server) dialPort(ctx context.Context, _, addr string) (net.Conn, error) {
	label, _, _ := strings.Cut(addr, ":")
	port, id, _ := strings.Cut(label, "-")
	t, err := parseTarget(id, port)
	if err != nil {
		return nil, err
	}
	return s.dialTarget(ctx, t)
}

func (s *Server) dialTarget(ctx context.Context, t portTarget) (net.Conn, error) {
	e, err := s.edges.Find(ctx, t.id.Edge())
	if err != nil {
		return nil, err
	}
	c, err := e.dial(ctx)
	if err != nil {
		return nil, e.failed(ctx, err)
	}
	return tcptunnel.Dial(ctx, c, tcptunnel.Request{Host: "local", SandboxID: string(t.id), Port: t.port})
}

func (s *Server) portError(w http.ResponseWriter, r *http.Request, err error) {
	var refused *tcptunnel.Refused
	if errors.As(err, &refused) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(refused.Status)
		_, _ = w.Write(refused.Body)
		return
	}
	ce := connectError(err)
	s.metrics.failures.WithLabelValues(ce.Code().String()).Inc()
	writeJSONError(w, ce)
}

// portURL answers GET /v1/sandboxes/{id}/tcp/{port}/url[?seconds=N] with {"url","token","expiresAt"}.
func (s *Server) portURL(w http.ResponseWriter, r *http.Request) {
	t, err := parseTarget(r.PathValue("id"), r.PathValue("port"))
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	life := defaultPortTokenLife
	if v := r.URL.Query().Get("seconds"); v != "" {
		n, err := strconv.ParseUint(v, 10, 32)
		if life = time.Duration(n) * time.Second; err != nil || n == 0 || life > maxPortTokenLife {
			s.writeError(w, r, fmt.Errorf("seconds %.20q: %w: want 1 to %d", v, sandbox.ErrInvalid, int(maxPortTokenLife.Seconds())))
			return
		}
	}
	expires := time.Now().Add(life).Truncate(time.Second)
	token, err := s.o.Keys.PortToken(r.Context(), t.id, t.port, expires)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"url":       s.portURLOf(t) + "/?" + tokenName + "=" + token,
		"token":     token,
		"expiresAt": expires.UTC().Format(time.RFC3339),
	})
}

// portURLOf names the port on the ports' origin: http://8000-sabcd....localhost:7778.
func (s *Server) portURLOf(t portTarget) string {
	scheme, host, ok := strings.Cut(s.o.PortsURL, "://")
	if !ok {
		return ""
	}
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = host, ""
	}
	if ip := net.ParseIP(name); ip != nil && ip.IsLoopback() {
		name = "localhost" // browsers resolve *.localhost to loopback
	}
	if port != "" {
		name = net.JoinHostPort(name, port)
	}
	return scheme + "://" + t.host() + "." + name
}
