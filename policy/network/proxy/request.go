package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

// Bounds of a request's head.
const (
	maxHead    = 64 << 10
	maxHeaders = 256
	maxChunk   = 256 // bytes of a chunk's first line
)

// chunked is the length of a body that comes in chunks.
const chunked = -1

// request is the head of an HTTP/1 request. Nothing in it can be read in two ways.
type request struct {
	head    []byte // to pass on: as it came, without Expect
	method  string
	host    string // of the Host header, without port
	port    uint16 // of the Host header, 0 without
	length  int64  // of the body, or chunked
	last    bool   // the client wants the connection to end after it
	upgrade bool
	expect  bool // it waits for "100 Continue"
}

// readLine reads a line that ends in CRLF, and returns it without. Bare CR and LF are errors. limit bounds it.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, errors.New("a line or head that is too long")
		}
		line = append(line, part...)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) && len(line) > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		break
	}
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok || bytes.IndexByte(text, '\r') >= 0 {
		return nil, errors.New("a line that does not end in CRLF, or has a CR inside")
	}
	return text, nil
}

// readRequest reads a head. io.EOF says that the client has ended before one.
func readRequest(r *bufio.Reader) (*request, error) {
	line, err := readLine(r, maxHead)
	if err != nil {
		return nil, err
	}
	q := &request{}
	target, minor, err := q.startLine(line)
	if err != nil {
		return nil, err
	}
	q.head = append(append(q.head, line...), "\r\n"...)
	total := len(line)
	var h headers
	for n := 0; ; n++ {
		line, err := readLine(r, maxHead)
		if err != nil {
			return nil, err
		}
		if total += len(line); total > maxHead || n > maxHeaders {
			return nil, errors.New("a head that is too long")
		}
		if len(line) == 0 {
			break
		}
		name, value, err := header(line)
		if err != nil {
			return nil, err
		}
		if err := h.take(name, value); err != nil {
			return nil, err
		}
		if name != "expect" {
			q.head = append(append(q.head, line...), "\r\n"...)
		}
	}
	q.head = append(q.head, "\r\n"...)
	return q, q.judge(&h, target, minor)
}

func (q *request) startLine(line []byte) (target string, minor int, err error) {
	parts := strings.Split(string(line), " ")
	if len(parts) != 3 || !token(parts[0]) || parts[1] == "" {
		return "", 0, errors.New("a malformed request line")
	}
	switch parts[2] {
	case "HTTP/1.1":
		minor = 1
	case "HTTP/1.0":
	case "HTTP/2.0":
		return "", 0, errors.New("HTTP/2 without TLS")
	default:
		return "", 0, errors.New("a version of HTTP other than 1.0 and 1.1")
	}
	for i := range len(parts[1]) {
		if c := parts[1][i]; c <= ' ' || c >= 0x7f {
			return "", 0, errors.New("a target with bytes that belong in no target")
		}
	}
	q.method = parts[0]
	if q.method == "CONNECT" {
		return "", 0, errors.New("CONNECT: this is no proxy to name destinations to")
	}
	return parts[1], minor, nil
}

// header splits a line into a lower-case name and a value.
func header(line []byte) (name, value string, err error) {
	n, v, ok := bytes.Cut(line, []byte(":"))
	if !ok || !token(string(n)) { // a folded line or a blank before the colon is no token
		return "", "", errors.New("a malformed header")
	}
	for _, c := range v {
		if c < ' ' && c != '\t' || c == 0x7f {
			return "", "", errors.New("a header with control bytes")
		}
	}
	return strings.ToLower(string(n)), strings.Trim(string(v), " \t"), nil
}

func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// headers are those that say where a request goes and where it ends.
type headers struct {
	host, length, coding *string
	connection           []string
	upgrade              []string
	expect               []string
}

func (h *headers) take(name, value string) error {
	once := func(p **string) error {
		if *p != nil {
			return errors.New("the header " + name + " twice")
		}
		*p = &value
		return nil
	}
	switch name {
	case "host":
		return once(&h.host)
	case "content-length":
		return once(&h.length)
	case "transfer-encoding":
		return once(&h.coding)
	case "connection":
		h.connection = append(h.connection, list(value)...)
	case "upgrade":
		h.upgrade = append(h.upgrade, list(value)...)
	case "expect":
		h.expect = append(h.expect, list(value)...)
	case "http2-settings":
		return errors.New("an upgrade to HTTP/2, where Host could not be checked")
	}
	return nil
}

func list(value string) []string {
	var out []string
	for one := range strings.SplitSeq(value, ",") {
		if one = strings.ToLower(strings.Trim(one, " \t")); one != "" {
			out = append(out, one)
		}
	}
	return out
}

// judge draws the conclusions, or refuses what has several.
func (q *request) judge(h *headers, target string, minor int) error {
	for _, c := range h.connection {
		switch c {
		case "close":
			q.last = true
		case "keep-alive", "upgrade", "te":
		default:
			return errors.New("the hop-by-hop header " + strconv.Quote(c) + ", which the next server would take out")
		}
	}
	for _, u := range h.upgrade {
		if strings.HasPrefix(u, "h2") || strings.HasPrefix(u, "http/") {
			return errors.New("an upgrade to another HTTP, where Host could not be checked")
		}
		if strings.HasPrefix(u, "tls") || strings.HasPrefix(u, "ssl") || strings.HasPrefix(u, "connect-") {
			return errors.New("an upgrade to " + strconv.Quote(u) + ", inside which another name could be asked for")
		}
		q.upgrade = true
	}
	for _, e := range h.expect {
		if e != "100-continue" {
			return errors.New("an unknown expectation")
		}
		q.expect = minor == 1
	}
	switch {
	case h.coding != nil && h.length != nil:
		return errors.New("both a length and a transfer coding")
	case h.coding != nil && (minor == 0 || !strings.EqualFold(*h.coding, "chunked")):
		return errors.New("a transfer coding other than chunked")
	case h.coding != nil:
		q.length = chunked
	case h.length != nil:
		if len(*h.length) > 18 || strings.Trim(*h.length, "0123456789") != "" || *h.length == "" {
			return errors.New("a length that is no number")
		}
		q.length, _ = strconv.ParseInt(*h.length, 10, 64)
	}
	if q.length != 0 && bodiless[q.method] {
		return errors.New("a body of a " + q.method + ", which some servers would read as the next request")
	}
	if q.upgrade && q.length != 0 {
		return errors.New("an upgrade with a body")
	}
	if h.host == nil {
		return errors.New("no Host")
	}
	var err error
	if q.host, q.port, err = splitHost(*h.host); err != nil {
		return err
	}
	return q.checkTarget(target)
}

// bodiless are methods whose bodies some servers pass over.
var bodiless = map[string]bool{"GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true}

// checkTarget compares an absolute target with Host.
func (q *request) checkTarget(target string) error {
	if strings.HasPrefix(target, "/") || target == "*" && q.method == "OPTIONS" {
		return nil
	}
	const scheme = "http://"
	if len(target) < len(scheme) || !strings.EqualFold(target[:len(scheme)], scheme) {
		return errors.New("a target that is neither a path nor http://")
	}
	authority := target[len(scheme):]
	if i := strings.IndexAny(authority, "/?#\\"); i >= 0 {
		authority = authority[:i]
	}
	host, port, err := splitHost(authority)
	if err != nil || !strings.EqualFold(host, q.host) || port != q.port {
		return errors.New("a target that differs from Host")
	}
	return nil
}

// splitHost reads a name or address with an optional port.
func splitHost(s string) (host string, port uint16, err error) {
	bad := errors.New("a malformed Host")
	rest := ""
	if inside, ok := strings.CutPrefix(s, "["); ok {
		if host, rest, ok = strings.Cut(inside, "]"); !ok {
			return "", 0, bad
		}
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() || a.Zone() != "" {
			return "", 0, bad
		}
	} else {
		if i := strings.IndexByte(s, ':'); i >= 0 {
			host, rest = s[:i], s[i:]
		} else {
			host = s
		}
		if !hostname(host) {
			return "", 0, bad
		}
	}
	if rest == "" {
		return host, 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimPrefix(rest, ":"), 10, 16)
	if err != nil || rest[0] != ':' || n == 0 || rest[1] == '+' {
		return "", 0, bad
	}
	return host, uint16(n), nil
}
