package sandbox

import (
	"context"
	"os"

	"github.com/opendsec/dsec/guest/aether"
)

// Capabilities tell what a driver's instances can do; callers ask instead of trying.
type Capabilities struct {
	Pause        bool // freeze and thaw in place
	Terminal     bool
	Ports        bool // TCP ports inside can be dialled
	DiskQuota    bool
	CommandGroup bool // each command has a cgroup made by the host
	Network      bool // instances can have one
	Snapshot     bool // disks of running instances can be kept: the Backend is a Snapshotter
	// Memory: snapshots hold memory and processes as well; each stands alone, with all that its sandbox has changed.
	Memory    bool
	Saves     bool // instances are a Saver
	Real      bool // runs real programs (the fake does not)
	NoAgent   bool // instances may have no dsec-init inside: Connect then returns ErrUnsupported
	Screen    bool // instances have a screen: they are a Screen
	CloudInit bool // instances can be given a seed disk
}

// Backend makes instances of one kind. Implementations are safe for concurrent use.
//
// Contract:
//   - Create returns a ready instance (its dsec-init has its environment and answers) or leaves nothing
//     behind. Errors: ErrExhausted before anything is made; *Failure with an infra or policy kind otherwise.
//   - Whatever Create makes is recorded first, so that Sweep, run by a new process after kill -9 at any step,
//     finds and removes it.
//   - Recover takes the Handle of an instance that an earlier process made, paused or not; what is asked of it then is
//     answered. ErrNotFound = it is gone.
//   - Close releases what the process itself holds (pools, warm shells) and ends no instance.
type Backend interface {
	Name() BackendName
	Capabilities() Capabilities
	Create(ctx context.Context, spec *Spec) (Instance, error)
	Recover(ctx context.Context, id ID, handle []byte) (Instance, error)
	// Sweep removes every part of instances for which keep is false, and reports what it removed. It is
	// called once, before the first Create, after all Recover calls.
	Sweep(ctx context.Context, keep func(ID) bool) ([]string, error)
	// Warm is the number of prepared shells at hand, for statistics.
	Warm() int
	Close(ctx context.Context) error
}

// Instance is one machine.
type Instance interface {
	ID() ID
	// Handle is what Recover needs, at most 4 KiB.
	Handle() []byte
	// Connect returns a connection to its dsec-init, before Serve. The first call after Create returns the one
	// that Create used; later calls open a new one with a greater epoch, which displaces the older. ErrUnsupported, where
	// Capabilities.NoAgent: there is no dsec-init inside.
	Connect(ctx context.Context) (*aether.Conn, error)
	// Group makes the host's control group for a command, where Capabilities.CommandGroup.
	Group(ctx context.Context, command string) (Group, error)
	// OpenGroup finds the group of a command that an earlier process made. ErrNotFound = gone.
	OpenGroup(command string) (Group, error)
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
	Stats(ctx context.Context) (Stats, error)

	// Done is closed when the machine has ended by itself or was destroyed; End then tells why (nil after
	// Destroy).
	Done() <-chan struct{}
	End() *Failure
	// Destroy ends all processes; when it returns none is left. Parts that only take up room may be removed a moment
	// later, by the Backend's Close at the latest. Idempotent; safe after Done.
	Destroy(ctx context.Context) error
}

// DiskMeter is an optional ability of an Instance: telling at once, not as last accounted, whether its disk has no
// room left. own: it has reached its own limit; shared: it has not, but what it shares with others is full.
type DiskMeter interface {
	DiskFull(ctx context.Context) (own, shared bool, err error)
}

// Responder is an optional ability of an Instance whose sandbox runs inside a program of the platform's (QEMU, for instance):
// telling whether that one answers. What does not answer while it does is inside the sandbox.
type Responder interface {
	Responds(ctx context.Context) error
}

// Booter is an optional ability of an Instance: telling, after Create, how it came up: "warm", it was ready; "clone", of
// one that had booted before; "cold", it booted; "snapshot", it goes on from one.
type Booter interface {
	Boot() string
}

// Layered is an optional ability of an Instance: telling, after Create, how its layers come to it, and of those that come otherwise
// why, for people: "pmem", as memory that it shares with others; "blk", as disks; "" = as is usual.
type Layered interface {
	LayersAs() string
}

// Kerneled is an optional ability of an Instance that has a kernel of its own: telling, after Create, the kernel's version, as uname
// says inside; "" = unknown.
type Kerneled interface {
	Kernel() string
}

// Saver is an optional ability of an Instance: a paused one may be without a process, its memory on disk instead of the
// node's. It is no end: Done stays open.
type Saver interface {
	// Save ends what runs of a paused instance, whose connections end with it; bytes is what its memory takes on disk.
	// After an error, its context's end included, it is paused as before, but may not be connected. Errors: ErrExhausted
	// where the disk has no room.
	Save(ctx context.Context) (bytes int64, err error)
	// Saved tells whether it is so. Connect and Resume bring it back; after an error of theirs it is saved as before.
	Saved() bool
}

// LateAgent is an optional ability of an Instance, where Capabilities.NoAgent: telling when an agent is there that Connect
// did not find, because the system inside starts it later, or has restarted. AgentUp is closed while there is one.
type LateAgent interface {
	AgentUp() <-chan struct{}
}

// GroupLister is an optional ability of an Instance: naming the control groups of commands that exist, so that those
// which ended commands left can be told from those that are in use after a restart.
type GroupLister interface {
	Groups() ([]string, error)
}

// Group is the control group of one command: its whole process tree, whatever it does to hide.
type Group interface {
	// Files are handed to dsec-init with the start request, in the order that guest/wire documents:
	// cgroup.procs (the child joins by writing 0) and cgroup.kill, both opened for writing.
	Files() []*os.File
	// Kill ends every process of the tree.
	Kill() error
	// Signal sends a signal to every process of the tree.
	Signal(sig int) error
	// Empty tells whether no process is left.
	Empty() (bool, error)
	// OOMKills counts memory kills since the group was made (exact with cgroup v2; of the whole sandbox
	// since then with v1).
	OOMKills() (int64, error)
	// Remove kills what is left, closes the files and removes the group.
	Remove() error
	// CloseFiles closes the descriptors once they have been handed over.
	CloseFiles()
}
