package tree

import (
	"github.com/opendsec/dsec/layer/union"
	"github.com/opendsec/dsec/sandbox"
)

// Devices says what becomes of device nodes in an input.
type Devices int

// The policies.
const (
	RefuseDevices Devices = iota // an error
	SkipDevices                  // left out, counted: layers are mounted without devices, and /dev is the sandbox's own
	KeepDevices
)

// Options of a Builder.
type Options struct {
	// Prefix is the directory of the tree that inputs land in, "/workspace" for example; empty = its root.
	Prefix  string
	Devices Devices
	// Overlay says that directories given to AddDir are upper directories of an overlay: character devices 0:0
	// and opaque marks are kept as what they are.
	Overlay bool
	// Below is what the layers show that this one will lie on. Parents of entries then are what they are there: links are
	// followed, and directories keep their owner, mode and time. nil = nothing is known of it.
	Below  *union.Tree
	Limits Limits
	// MinFree is how many bytes must stay free on the file system that the layer is made on.
	MinFree int64
}

// Limits bound one layer. Zero fields get the defaults. What goes beyond is refused with
// sandbox.ErrExhausted.
type Limits struct {
	Entries   int64 // entries read, whiteouts included
	Bytes     int64 // file contents, holes included; also what an archive may decompress to
	MetaBytes int64 // names, link targets and attributes, which are held in memory
}

// DefaultLimits are generous: they stop bombs, not images.
var DefaultLimits = Limits{Entries: 5_000_000, Bytes: 256 << 30, MetaBytes: 1 << 30}

func (l Limits) orDefault() Limits {
	if l.Entries == 0 {
		l.Entries = DefaultLimits.Entries
	}
	if l.Bytes == 0 {
		l.Bytes = DefaultLimits.Bytes
	}
	if l.MetaBytes == 0 {
		l.MetaBytes = DefaultLimits.MetaBytes
	}
	return l
}

// Stats counts what went in.
type Stats struct {
	Entries        int64 // entries read
	Bytes          int64 // file contents read, holes included
	SkippedDevices int64
	SkippedSockets int64
	SharedBytes    int64 // contents stored already, as the content of another file
	DeadBytes      int64 // contents replaced or removed by later entries
}

// Errors of inputs wrap these kinds of package sandbox.
var (
	errInvalid   = sandbox.ErrInvalid
	errExhausted = sandbox.ErrExhausted
)
