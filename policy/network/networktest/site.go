package networktest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Site is a web server under one or more names: HTTP on port 80 and HTTPS on port 443 of each of its addresses.
// Several sites may share addresses, as tenants of a content network do; give the second one Addrs of the first.
type Site struct {
	Name   string
	V4, V6 []netip.Addr

	mu       sync.Mutex
	requests []Request
}

// Request is what a site saw of a request.
type Request struct {
	Host, SNI, Method, Path, Proto string
	From                           netip.AddrPort
}

// Requests are the requests so far.
func (s *Site) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Addrs are all addresses of the site, IPv4 first.
func (s *Site) Addrs() []netip.Addr { return slices.Concat(s.V4, s.V6) }

type siteOptions struct {
	v4, v6  int
	addrs   []netip.Addr
	handler http.Handler
	noDNS   bool
}

// Option changes a site.
type Option func(*siteOptions)

// V4 and V6 give the site n addresses of a family. Without any of them and without Addrs: one of each.
func V4(n int) Option { return func(o *siteOptions) { o.v4 = n } }

// V6 is V4 for IPv6.
func V6(n int) Option { return func(o *siteOptions) { o.v6 = n } }

// Addrs gives the site these addresses.
func Addrs(a ...netip.Addr) Option { return func(o *siteOptions) { o.addrs = append(o.addrs, a...) } }

// Handler answers instead of the default, which says which site was reached: "site=NAME host=HOST".
func Handler(h http.Handler) Option { return func(o *siteOptions) { o.handler = h } }

// Unlisted keeps the site out of the DNS.
func Unlisted() Option { return func(o *siteOptions) { o.noDNS = true } }

// Site starts a site, and lists it in the internet's DNS. A second site on the same addresses is served by the same
// listeners, told apart by Host and SNI: a server that serves whatever name it is asked for, as content networks do.
func (i *Internet) Site(name string, options ...Option) *Site {
	i.t.Helper()
	var o siteOptions
	for _, f := range options {
		f(&o)
	}
	if o.v4 == 0 && o.v6 == 0 && len(o.addrs) == 0 {
		o.v4, o.v6 = 1, 1
	}
	s := &Site{Name: name}
	for range o.v4 {
		o.addrs = append(o.addrs, i.nextAddr(false))
	}
	for range o.v6 {
		o.addrs = append(o.addrs, i.nextAddr(true))
	}
	for _, a := range o.addrs {
		if a.Is4() {
			s.V4 = append(s.V4, a)
		} else {
			s.V6 = append(s.V6, a)
		}
	}
	if o.handler == nil {
		o.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, "site=%s host=%s\n", name, r.Host)
		})
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := netip.ParseAddrPort(r.RemoteAddr)
		seen := Request{Host: r.Host, Method: r.Method, Path: r.URL.Path, Proto: r.Proto, From: from}
		if r.TLS != nil {
			seen.SNI = r.TLS.ServerName
		}
		s.mu.Lock()
		s.requests = append(s.requests, seen)
		s.mu.Unlock()
		o.handler.ServeHTTP(w, r)
	})
	for _, a := range s.Addrs() {
		i.serve(a, name, handler)
	}
	if !o.noDNS {
		i.DNS.Host(name, 60, s.Addrs()...)
	}
	return s
}

// Metadata starts the metadata service of a cloud, on both of its addresses. It answers with secrets.
func (i *Internet) Metadata() *Site {
	i.t.Helper()
	i.AddAddr(MetadataV4)
	i.AddAddr(MetadataV6)
	return i.Site("metadata.internal", Addrs(MetadataV4, MetadataV6), Unlisted(), Handler(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "secret credentials\n") })))
}

// tenants serve one address.
type tenants struct {
	mu     sync.Mutex
	byName map[string]http.Handler
	first  http.Handler
}

func (v *tenants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	v.mu.Lock()
	h := v.byName[host]
	if h == nil {
		h = v.first
	}
	v.mu.Unlock()
	h.ServeHTTP(w, r)
}

// serve adds a name to the servers of an address, and starts them for the first.
func (i *Internet) serve(a netip.Addr, name string, h http.Handler) {
	i.t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	if v := i.serving[a]; v != nil {
		v.mu.Lock()
		v.byName[name] = h
		v.mu.Unlock()
		return
	}
	v := &tenants{byName: map[string]http.Handler{name: h}, first: h}
	i.serving[a] = v
	for _, port := range []uint16{80, 443} {
		ln, err := i.Listen("tcp", netip.AddrPortFrom(a, port).String())
		if err != nil {
			i.t.Fatalf("site %s: %v", name, err)
		}
		i.serveHTTP(ln, v, port == 443, name)
	}
}

// serveHTTP serves until the test ends.
func (i *Internet) serveHTTP(ln net.Listener, h http.Handler, secure bool, fallback string) {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	srv.ErrorLog = quiet
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if secure {
			srv.TLSConfig = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if hello.ServerName == "" {
					return i.CA.Leaf(fallback)
				}
				return i.CA.Leaf(hello.ServerName)
			}}
			err = srv.ServeTLS(ln, "", "")
		} else {
			err = srv.Serve(ln)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			i.t.Errorf("site %s: %v", fallback, err)
		}
	})
	i.t.Cleanup(func() {
		srv.Close()
		wg.Wait()
	})
}

// Client is an HTTP client that dials from a namespace, trusts the internet's authority, and connects every name to
// the address given (a proxy, or a site), so that the test decides what is resolved.
func (i *Internet) Client(from *Namespace, to func(hostport string) string) *http.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return from.Dial(ctx, network, to(addr))
		},
		TLSClientConfig: &tls.Config{RootCAs: i.CA.Pool},
	}
	i.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}
}
