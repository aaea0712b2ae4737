package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"

	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/node"
)

// The internet of a node whose host is this process's namespace: a resolver, and a web server at two addresses, one
// that a name leads to and one that a rule names.
const (
	upstream = "198.51.100.53"
	named    = "203.0.113.20"
	plain    = "203.0.113.21"
	zone     = "bench.example"
	large    = 64 << 20
)

// names: what the resolver and the check of names add to a question and to a connection.
func (b *bench) names(ctx context.Context) (err error) {
	internet, err := linux.NewNetSpace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, internet.Close()) }()
	const wan = 50
	near, far := netip.MustParsePrefix("192.0.2.1/30"), netip.MustParsePrefix("192.0.2.2/30")
	here, err := linux.OpenRoute()
	if err != nil {
		return err
	}
	defer here.Close()
	if err := here.Apply(linux.AddVeth(linux.VethEnd{Name: "wan", Index: wan}, linux.VethEnd{Name: "wan", Index: wan, Space: internet.File()}, 0),
		linux.UpLink(wan), linux.AddAddress(wan, near)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, here.Apply(linux.DeleteLink(wan))) }()
	if err := apply(internet, linux.UpLink(1), linux.UpLink(wan), linux.AddAddress(wan, far), linux.AddAddress(1, netip.MustParsePrefix(upstream+"/32")),
		linux.AddAddress(1, netip.MustParsePrefix(named+"/32")), linux.AddAddress(1, netip.MustParsePrefix(plain+"/32"))); err != nil {
		return err
	}
	if err := here.Apply(linux.SettleLink(wan), linux.AddRoute(linux.RouteTo{To: netip.MustParsePrefix("0.0.0.0/0"), Index: wan, Via: far.Addr()})); err != nil {
		return err
	}
	stop, err := serveNames(internet)
	if err != nil {
		return err
	}
	defer stop()
	dir, err := os.MkdirTemp("", "bench-network-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	proxy, stopProxy, err := b.netproxy(ctx, filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stopProxy()) }()
	n, err := node.Open(node.Config{Dir: filepath.Join(dir, "network"), Proxy: proxy, Upstreams: []netip.AddrPort{netip.MustParseAddrPort(upstream + ":53")}}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Destroy()) }()
	box, err := linux.NewNetSpace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.Close()) }()
	if err := n.Attach(0, box.File(), nil); err != nil {
		return err
	}
	policy, err := network.ParseTexts(network.Builtin(), "*."+zone, upstream+":53/udp", plain+":80,443/tcp")
	if err != nil {
		return err
	}
	compiler := n.Compiler()
	prog, err := compiler.Compile(network.Layer{Source: network.FromSpec, Policy: policy})
	if err != nil {
		return err
	}
	if err := n.Set(0, "bench", 1, prog); err != nil {
		return err
	}
	if err := b.questions(ctx, box, n.Resolvers()[0].String()); err != nil {
		return fmt.Errorf("questions: %w", err)
	}
	return b.checked(ctx, box, n.Resolvers()[0].String())
}

// netproxy starts the process that checks names, as a node has it, and returns its socket.
func (b *bench) netproxy(ctx context.Context, state string) (socket string, stop func() error, err error) {
	cmd := exec.Command(b.dsec, "serve", "--role", "netproxy", "--state", state)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("netproxy: %w\n%s", err, log.String())
		}
		return nil
	}
	socket = filepath.Join(state, "run", "netproxy.sock")
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		c, err := net.Dial("unix", socket)
		if err == nil {
			return socket, stop, c.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return "", nil, errors.Join(fmt.Errorf("netproxy does not listen: %w", err), stop())
		}
	}
}

// in opens a connection in a namespace.
func in(s *linux.NetSpace, network, address string) (c net.Conn, err error) {
	err = s.Do(func() error {
		d := net.Dialer{Timeout: 10 * time.Second}
		c, err = d.Dial(network, address)
		return err
	})
	return c, err
}

// ask asks for an address, by a socket of its own, and returns how long the answer took.
func ask(s *linux.NetSpace, resolver, name string) (time.Duration, error) {
	conn, err := in(s, "udp", net.JoinHostPort(resolver, "53"))
	if err != nil {
		return 0, err
	}
	c := &dns.Conn{Conn: conn}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	q := new(dns.Msg).SetQuestion(name+".", dns.TypeA)
	start := time.Now()
	if err := c.WriteMsg(q); err != nil {
		return 0, err
	}
	a, err := c.ReadMsg()
	if err == nil && len(a.Answer) == 0 {
		err = fmt.Errorf("%s: %s", name, dns.RcodeToString[a.Rcode])
	}
	return time.Since(start), err
}

// distant begins the names that the upstream answers 2 ms later, as one does that is not on the same machine: a question through
// the node is four journeys, where a direct one is two, and without a way to go all of them cost alike.
const (
	distant  = "far-"
	distance = 2 * time.Millisecond
)

func (b *bench) questions(ctx context.Context, box *linux.NetSpace, resolver string) error {
	times := map[string][]time.Duration{}
	failures := map[string]int{}
	// Slower than the bound of questions and of new names under a wildcard.
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	for i := range b.n {
		for _, w := range []struct{ name, at, what string }{
			{"question_direct", upstream, fmt.Sprintf("a%d.%s", i, zone)}, {"question_uncached", resolver, fmt.Sprintf("b%d.%s", i, zone)},
			{"question_cached", resolver, fmt.Sprintf("b%d.%s", i, zone)},
			{"question_direct_2ms", upstream, fmt.Sprintf("%sa%d.%s", distant, i, zone)}, {"question_uncached_2ms", resolver, fmt.Sprintf("%sb%d.%s", distant, i, zone)},
		} {
			d, err := ask(box, w.at, w.what)
			if err != nil {
				if failures[w.name]++; failures[w.name] == 1 {
					fmt.Fprintln(os.Stderr, w.name, err)
				}
				continue
			}
			times[w.name] = append(times[w.name], d)
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, name := range []string{"question_direct", "question_uncached", "question_cached"} {
		b.add(measure.FromDurations(name, times[name], failures[name]), "question_direct")
	}
	for _, name := range []string{"question_direct_2ms", "question_uncached_2ms"} {
		b.add(measure.FromDurations(name, times[name], failures[name]), "question_direct_2ms")
	}
	return nil
}

// checked compares connections that are checked for their name with the same ones to an address that a rule names.
func (b *bench) checked(ctx context.Context, box *linux.NetSpace, resolver string) error {
	if _, err := ask(box, resolver, "www."+zone); err != nil {
		return err
	}
	ways := []struct{ name, at string }{{"direct", plain}, {"checked", named}}
	first, bulk := map[string][]time.Duration{}, map[string][]float64{}
	failures := map[string]int{}
	get := func(at, path string) (time.Duration, error) {
		start := time.Now()
		conn, err := in(box, "tcp", net.JoinHostPort(at, "443"))
		if err != nil {
			return 0, err
		}
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		c := tls.Client(conn, &tls.Config{ServerName: "www." + zone, InsecureSkipVerify: true})
		defer c.Close()
		if _, err := io.WriteString(c, path); err != nil {
			return 0, err
		}
		n, err := io.Copy(io.Discard, c)
		if err == nil && n == 0 {
			err = errors.New("no answer")
		}
		return time.Since(start), err
	}
	for i := range b.n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for j := range ways {
			w := ways[(i+j)%2]
			d, err := get(w.at, "s")
			if err != nil {
				if failures[w.name]++; failures[w.name] == 1 {
					fmt.Fprintln(os.Stderr, "tls", w.name, err)
				}
				continue
			}
			first[w.name] = append(first[w.name], d)
			if i%10 == 0 {
				if d, err = get(w.at, "l"); err == nil {
					bulk[w.name] = append(bulk[w.name], d.Seconds()*(1<<30)/large)
				}
			}
		}
	}
	for _, w := range ways {
		b.add(measure.FromDurations("tls_connection_"+w.name, first[w.name], failures[w.name]), "tls_connection_direct")
		b.add(measure.FromValues("tls_receive_"+w.name, "s/GiB", bulk[w.name], failures[w.name]), "tls_receive_direct")
	}
	return nil
}

// serveNames serves the resolver and the web server. A request is one byte: s for little, l for much.
func serveNames(s *linux.NetSpace) (stop func(), err error) {
	cert, err := certificate()
	if err != nil {
		return nil, err
	}
	var closers []io.Closer
	stop = func() {
		for _, c := range closers {
			_ = c.Close()
		}
	}
	var pc net.PacketConn
	err = s.Do(func() (err error) {
		pc, err = net.ListenPacket("udp", upstream+":53")
		return err
	})
	if err != nil {
		return nil, err
	}
	closers = append(closers, pc)
	server := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		if len(q.Question) == 1 && q.Question[0].Qtype == dns.TypeA {
			// The node asks in letters of random case.
			if strings.HasPrefix(strings.ToLower(q.Question[0].Name), distant) {
				time.Sleep(distance)
			}
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.ParseIP(named)}}
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	for _, at := range []string{named, plain} {
		var ln net.Listener
		err := s.Do(func() (err error) {
			ln, err = net.Listen("tcp", net.JoinHostPort(at, "443"))
			return err
		})
		if err != nil {
			stop()
			return nil, err
		}
		closers = append(closers, ln)
		go serveWeb(tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}}))
	}
	return stop, nil
}

func serveWeb(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			var what [1]byte
			if _, err := io.ReadFull(c, what[:]); err != nil {
				return
			}
			n := 1
			if what[0] == 'l' {
				n = large
			}
			for b := make([]byte, 256<<10); n > 0; n -= len(b) {
				if _, err := c.Write(b[:min(n, len(b))]); err != nil {
					return
				}
			}
		}()
	}
}

func certificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"www." + zone}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
