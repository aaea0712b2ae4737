package netproxy

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/dns"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/policy/network/proxy"
	"github.com/opendsec/dsec/sandbox"
)

// protocol is what both ends must speak.
const protocol = 1

// maxFrame bounds one frame: a program of the most rules there may be is some megabytes.
const maxFrame = 64 << 20

// frame is what is said at once: four bytes of length, and JSON. One of the fields is set, and ID with those that are
// answered.
type frame struct {
	ID uint64 `json:",omitempty"`

	// The edge says:
	Hello   *hello         `json:",omitempty"` // first; answered
	Program *program       `json:",omitempty"` // that places name from now on
	Drop    uint64         `json:",omitempty"` // a program that none names any more
	Set     *place         `json:",omitempty"` // answered, with what was answered for it
	Recheck string         `json:",omitempty"` // answered
	Part    string         `json:",omitempty"` // answered
	Forget  *[2]netip.Addr `json:",omitempty"` // answered
	Grant   *grant         `json:",omitempty"`
	Stop    bool           `json:",omitempty"` // the network goes; answered
	Pong    uint64         `json:",omitempty"`

	// The server says:
	Answer *answer      `json:",omitempty"`
	Event  *proxy.Event `json:",omitempty"`
	Busy   *busy        `json:",omitempty"`
	Ping   uint64       `json:",omitempty"` // to be answered by Pong: what was said before it has arrived by then
}

// hello names the network and what programs are compiled with.
type hello struct {
	Protocol int
	Dir      string // of the router
	Plan     link.Plan
	Port     uint16
	Catalog  json.RawMessage
	Node     []netip.Prefix
}

type program struct {
	ID     uint64
	Layers []network.Layer
}

type place struct {
	Key       string
	Addresses [2]netip.Addr
	Program   uint64
	Entries   []dns.Entry `json:",omitempty"`
}

type grant struct {
	Key     string
	Entries []dns.Entry
}

type answer struct {
	Err     string      `json:",omitempty"`
	Entries []dns.Entry `json:",omitempty"`
}

type busy struct {
	Key  string
	Busy bool
}

// writeTimeout is how long the other end may take to read on: so many bytes of what was said.
const (
	writeTimeout = 10 * time.Second
	writeAtOnce  = 64 << 10
)

// deadliner is a connection.
type deadliner interface {
	io.Writer
	SetWriteDeadline(time.Time) error
}

func write(to deadliner, frames ...frame) error {
	var out []byte
	for _, f := range frames {
		b, err := json.Marshal(f)
		if err != nil {
			return err
		}
		if len(b) > maxFrame {
			return fmt.Errorf("a frame of %d bytes, at most %d are possible: %w", len(b), maxFrame, sandbox.ErrInvalid)
		}
		out = append(binary.BigEndian.AppendUint32(out, uint32(len(b))), b...)
	}
	for len(out) > 0 {
		part := out[:min(len(out), writeAtOnce)]
		if err := to.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := to.Write(part); err != nil {
			return err
		}
		out = out[len(part):]
	}
	return nil
}

func read(from io.Reader) (f frame, err error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return f, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return f, fmt.Errorf("a frame of %d bytes, at most %d are possible: %w", n, maxFrame, sandbox.ErrInvalid)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(from, b); err != nil {
		return f, err
	}
	return f, json.Unmarshal(b, &f)
}
