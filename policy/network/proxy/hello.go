package proxy

import (
	"bufio"
	"errors"
	"io"

	"golang.org/x/crypto/cryptobyte"
)

// Record types and the handshake messages of TLS that are looked at.
const (
	recordCipherChange = 20
	recordAlert        = 21
	recordHandshake    = 22
	recordData         = 23

	messageClientHello = 1
	messageServerHello = 2

	maxRecord = 1 << 14  // bytes of a record's content, unencrypted
	maxHello  = 64 << 10 // bytes of a hello with its records' headers
	headerLen = 5
)

// hello is what a client says first.
type hello struct {
	raw  []byte // as it came, records and all
	name string // the server name; "" without
	ech  bool   // it carries an encrypted hello
}

var errHello = errors.New("a malformed TLS hello")

// readHello reads one client hello, in however many records it comes, and nothing beyond it.
func readHello(r *bufio.Reader) (*hello, error) {
	h := &hello{}
	var message []byte
	for {
		header := make([]byte, headerLen)
		if _, err := io.ReadFull(r, header); err != nil {
			return nil, err
		}
		size := int(header[3])<<8 | int(header[4])
		if header[0] != recordHandshake || header[1] != 3 || size == 0 || size > maxRecord {
			return nil, errHello
		}
		if len(h.raw)+headerLen+size > maxHello {
			return nil, errors.New("a TLS hello larger than 64 KiB")
		}
		body := make([]byte, size)
		if _, err := io.ReadFull(r, body); err != nil {
			return nil, err
		}
		h.raw = append(append(h.raw, header...), body...)
		message = append(message, body...)
		if message[0] != messageClientHello {
			return nil, errHello
		}
		if len(message) < 4 {
			continue
		}
		want := 4 + int(message[1])<<16 + int(message[2])<<8 + int(message[3])
		switch {
		case want > maxHello:
			return nil, errors.New("a TLS hello larger than 64 KiB")
		case len(message) > want:
			return nil, errHello // another message in the same record
		case len(message) == want:
			return h, h.parse(message[4:])
		}
	}
}

// Extensions that are looked at.
const (
	extServerName = 0
	extECH        = 0xfe0d
	extOldESNI    = 0xffce
)

// parse reads the message's body. Unknown extensions, the reserved ones that clients send for show among them, are
// passed over.
func (h *hello) parse(body []byte) error {
	s := cryptobyte.String(body)
	var version uint16
	var random []byte
	var session, ciphers, compression, extensions cryptobyte.String
	if !s.ReadUint16(&version) || !s.ReadBytes(&random, 32) || !s.ReadUint8LengthPrefixed(&session) ||
		!s.ReadUint16LengthPrefixed(&ciphers) || !s.ReadUint8LengthPrefixed(&compression) || len(session) > 32 ||
		len(ciphers) == 0 || len(ciphers)%2 != 0 || len(compression) == 0 {
		return errHello
	}
	if s.Empty() {
		return nil // before extensions were invented
	}
	if !s.ReadUint16LengthPrefixed(&extensions) || !s.Empty() {
		return errHello
	}
	seen := map[uint16]bool{}
	for !extensions.Empty() {
		var kind uint16
		var data cryptobyte.String
		if !extensions.ReadUint16(&kind) || !extensions.ReadUint16LengthPrefixed(&data) || seen[kind] {
			return errHello
		}
		seen[kind] = true
		switch kind {
		case extServerName:
			name, ok := serverName(data)
			if !ok {
				return errHello
			}
			h.name = name
		case extECH, extOldESNI:
			h.ech = true
		}
	}
	return nil
}

// serverName reads the one host name of a list.
func serverName(data cryptobyte.String) (string, bool) {
	var list, name cryptobyte.String
	var kind uint8
	if !data.ReadUint16LengthPrefixed(&list) || !data.Empty() || !list.ReadUint8(&kind) || kind != 0 ||
		!list.ReadUint16LengthPrefixed(&name) || !list.Empty() || !hostname(string(name)) {
		return "", false
	}
	return string(name), true
}

// hostname says whether s is written like a host's name. Addresses are, too.
func hostname(s string) bool {
	if s == "" || len(s) > 254 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return true
}
