// Package control is the language between a node and the first program of a virtual machine (package guest/machine):
// requests and replies, one JSON object a line, over the port PortName. Who connects begins with an empty line, which ends
// whatever a predecessor had begun; replies to unknown requests are for a predecessor and are passed over.
//
// The other port, Channel, carries package guest/wire as containers' sockets do. It is one stream of bytes that
// outlives connections, so each connection begins with a token: the node asks for it (OpSync), the machine drops its
// connection to dsec-init and sends the token, the node sends it back, and what both sides read before it is of a
// predecessor.
package control

import (
	"net/netip"

	"github.com/opendsec/dsec/internal/linux"
)

// Names of the ports.
const (
	PortName = "dsec.control"
	Channel  = "dsec.channel"
)

// Bounds, bytes.
const (
	MaxLine   = 256 << 10
	TokenSize = 32
)

// What a machine can be asked for.
const (
	OpSync    = "sync"    // Token: begin a connection
	OpPrepare = "prepare" // everything a claim needs; once
	OpReset   = "reset"   // undo a preparation and all that came of it: a new dsec-init, as after booting
	OpRenew   = "renew"   // Prepare, without layers and disk: become another machine; commands stand still
	OpFreeze  = "freeze"  // stop all commands
	OpThaw    = "thaw"    // let them go on; Time sets the clock, which stood still with the machine
	OpGroup   = "group"   // Group: what is known of a command's control group
	OpKill    = "kill"    // Group: signal all processes of a command's control group
	OpRemove  = "remove"  // Group: kill what is left and remove the group
	OpDisk    = "disk"    // room on the writable disk
	OpFlush   = "flush"   // write to the writable disk what is not there yet
	OpStats   = "stats"   // what commands use
	OpEnd     = "end"     // kill dsec-init, for tests of what follows
	OpPanic   = "panic"   // crash the kernel, likewise
)

// Request is one line to the machine.
type Request struct {
	N       uint64 // of the request; random beginnings tell connections apart
	Op      string
	Token   []byte   `json:",omitempty"`
	Prepare *Prepare `json:",omitempty"`
	Group   string   `json:",omitempty"`
	Signal  int      `json:",omitempty"`
	Time    int64    `json:",omitempty"` // nanoseconds since 1970
}

// Prepare makes the root that the next claim gets. Disks are named by their serial.
type Prepare struct {
	Layers   []Layer // bottom to top
	Disk     string  // ext4, empty: the writable layer
	Hostname string
	Memory   int64    // bytes for all commands together
	Pids     int64    //
	Seed     []byte   // randomness
	Time     int64    // nanoseconds since 1970
	Network  *Network `json:",omitempty"` // nil: loopback only
}

// Network is the sandbox's place in the node's network, and who answers questions for names there.
type Network struct {
	End       linux.LinkEnd
	Resolvers []netip.Addr
}

// Layer is an EROFS image and its data.
type Layer struct {
	Meta   string
	Data   string  `json:",omitempty"` // "" = it has none
	Memory *Memory `json:",omitempty"` // instead of disks
}

// Memory is a layer in regions of the machine's memory that are files of the node. A region is named by the address of its PCI
// device. Sizes are in bytes, multiples of 2 MiB, by which kernels map such regions.
type Memory struct {
	Head     string // Image bytes of the EROFS image, and the last Tail bytes of the data
	Image    int64
	Tail     int64  `json:",omitempty"`
	Body     string `json:",omitempty"` // the data before those, BodySize bytes; "" = there is none
	BodySize int64  `json:",omitempty"`
}

// Reply is one line from the machine: the answer to request N, or an event.
type Reply struct {
	N     uint64 `json:",omitempty"`
	Event string `json:",omitempty"`
	Token []byte `json:",omitempty"` // of EventClosed
	Error string `json:",omitempty"`
	Kind  string `json:",omitempty"` // of Error: KindInvalid, KindNotFound
	Group *Group `json:",omitempty"`
	Free  int64  `json:",omitempty"` // bytes, of OpDisk
	Stats *Stats `json:",omitempty"`
}

// Events.
const (
	EventReady  = "ready"  // the machine has booted
	EventClosed = "closed" // dsec-init has closed the connection that began with Token
	EventEnded  = "ended"  // dsec-init has ended, in a whole system, which goes on
)

// Kinds of errors.
const (
	KindInvalid  = "invalid"  // the environment's doing
	KindNotFound = "notfound" // no such group
	KindPrepared = "prepared" // it has been prepared before
)

// Unknown is the error that answers an operation that the agent, of an earlier version, does not know.
const Unknown = "unknown request"

// Group is what a machine knows of a command's control group.
type Group struct {
	OOMKills int64
	Empty    bool
}

// Stats are what all commands together use.
type Stats struct {
	Memory, MemoryPeak int64 // bytes
	Pids               int64
	OOMKills           int64
}
