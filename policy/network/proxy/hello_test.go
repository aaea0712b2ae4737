package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// clientHello is what the standard library's client says first.
func clientHello(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(a, cfg).Handshake()
	}()
	header := make([]byte, headerLen)
	if _, err := io.ReadFull(b, header); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(header[3:]))
	if _, err := io.ReadFull(b, body); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.Close()
	<-done
	return append(header, body...)
}

// inRecords cuts a hello's message into records of n bytes.
func inRecords(raw []byte, n int) []byte {
	var out []byte
	for body := raw[headerLen:]; len(body) > 0; {
		m := min(n, len(body))
		out = append(out, recordHandshake, 3, 1, byte(m>>8), byte(m))
		out = append(out, body[:m]...)
		body = body[m:]
	}
	return out
}

// withExtension adds an extension at the end.
func withExtension(raw []byte, kind uint16, data []byte) []byte {
	out := bytes.Clone(raw)
	ext := binary.BigEndian.AppendUint16(nil, kind)
	ext = binary.BigEndian.AppendUint16(ext, uint16(len(data)))
	ext = append(ext, data...)
	at := headerLen + 4 + 2 + 32
	at += 1 + int(out[at])
	at += 2 + int(binary.BigEndian.Uint16(out[at:]))
	at += 1 + int(out[at])
	binary.BigEndian.PutUint16(out[at:], binary.BigEndian.Uint16(out[at:])+uint16(len(ext)))
	out = append(out, ext...)
	message := len(out) - headerLen - 4
	out[headerLen+1], out[headerLen+2], out[headerLen+3] = byte(message>>16), byte(message>>8), byte(message)
	binary.BigEndian.PutUint16(out[3:], uint16(len(out)-headerLen))
	return out
}

func readBytes(b []byte) (*hello, error) { return readHello(bufio.NewReader(bytes.NewReader(b))) }

func TestHello(t *testing.T) {
	plain := clientHello(t, &tls.Config{ServerName: "example.org"})
	for what, raw := range map[string][]byte{
		"whole":            plain,
		"records of 1":     inRecords(plain, 1),
		"records of 100":   inRecords(plain, 100),
		"TLS 1.2":          clientHello(t, &tls.Config{ServerName: "example.org", MaxVersion: tls.VersionTLS12}),
		"reserved values":  withExtension(withExtension(plain, 0x3a3a, nil), 0xeaea, []byte{0}),
		"and more follows": append(bytes.Clone(plain), "more"...),
	} {
		h, err := readBytes(raw)
		if err != nil || h.name != "example.org" || h.ech {
			t.Errorf("%s: %+v %v", what, h, err)
			continue
		}
		if want := bytes.TrimSuffix(raw, []byte("more")); !bytes.Equal(h.raw, want) {
			t.Errorf("%s: passed on %d bytes of %d", what, len(h.raw), len(want))
		}
	}
	if h, err := readBytes(clientHello(t, &tls.Config{InsecureSkipVerify: true})); err != nil || h.name != "" {
		t.Errorf("without a name: %+v %v", h, err)
	}
	if h, err := readBytes(withExtension(plain, extECH, []byte{0, 0, 1})); err != nil || !h.ech || h.name != "example.org" {
		t.Errorf("with an encrypted hello: %+v %v", h, err)
	}
}

func TestHelloRefused(t *testing.T) {
	plain := clientHello(t, &tls.Config{ServerName: "example.org"})
	unnamed := clientHello(t, &tls.Config{InsecureSkipVerify: true})
	sni := func(names ...string) []byte {
		var list []byte
		for _, n := range names {
			list = append(list, 0, byte(len(n)>>8), byte(len(n)))
			list = append(list, n...)
		}
		return withExtension(unnamed, extServerName, append([]byte{byte(len(list) >> 8), byte(len(list))}, list...))
	}
	if h, err := readBytes(sni("example.org")); err != nil || h.name != "example.org" {
		t.Fatalf("the test's own hello: %+v %v", h, err)
	}
	change := func(at int, b byte) []byte {
		out := bytes.Clone(plain)
		out[at] = b
		return out
	}
	two := bytes.Clone(plain)
	two = append(two, plain[headerLen:]...)
	binary.BigEndian.PutUint16(two[3:], uint16(len(two)-headerLen))
	for what, raw := range map[string][]byte{
		"two names":              sni("example.org", "other.example"),
		"no name in the list":    withExtension(unnamed, extServerName, []byte{0, 0}),
		"an empty name":          sni(""),
		"a zero byte":            sni("example.org\x00.other.example"),
		"a slash":                sni("example.org/"),
		"the extension twice":    withExtension(plain, extServerName, []byte{0, 14, 0, 0, 11, 'e', 'x', 'a', 'm', 'p', 'l', 'e', '.', 'o', 'r', 'g'}),
		"two messages":           two,
		"another record":         change(0, recordData),
		"another version":        change(1, 2),
		"an empty record":        append([]byte{recordHandshake, 3, 1, 0, 0}, plain...),
		"a record too long":      append([]byte{recordHandshake, 3, 1, 0x40, 1}, make([]byte, maxRecord+1)...),
		"another message":        change(headerLen, messageServerHello),
		"a message too long":     change(headerLen+1, 2),
		"a length that is short": change(headerLen+3, plain[headerLen+3]-1),
		"a session too long":     change(headerLen+4+2+32, 33),
		"cut":                    plain[:len(plain)-1],
		"endless records":        bytes.Repeat(append([]byte{recordHandshake, 3, 1, 0x40, 0, messageClientHello, 0, 0xff, 0xfb}, make([]byte, maxRecord-4)...), 5),
	} {
		if h, err := readBytes(raw); err == nil {
			t.Errorf("%s is accepted: %+v", what, h.name)
		}
	}
}

// A name that is accepted is the one that a server takes from the same bytes.
func FuzzHello(f *testing.F) {
	plain := clientHello(f, &tls.Config{ServerName: "example.org"})
	f.Add(plain)
	f.Add(inRecords(plain, 200))
	f.Add(withExtension(plain, extECH, []byte{0}))
	f.Add(clientHello(f, &tls.Config{ServerName: "a.b", MaxVersion: tls.VersionTLS12}))
	stop := errors.New("enough")
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readBytes(b)
		if err != nil || h.name == "" {
			return
		}
		seen := ""
		a, c := net.Pipe()
		defer a.Close()
		defer c.Close()
		_ = a.SetDeadline(time.Now().Add(10 * time.Second))
		go func() {
			_, _ = a.Write(h.raw)
			_, _ = io.Copy(io.Discard, a)
		}()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_ = tls.Server(c, &tls.Config{GetConfigForClient: func(i *tls.ClientHelloInfo) (*tls.Config, error) {
			seen = i.ServerName
			return nil, stop
		}}).Handshake()
		if seen != "" && seen != h.name {
			t.Fatalf("the name is %q, and %q for a server", h.name, seen)
		}
	})
}
