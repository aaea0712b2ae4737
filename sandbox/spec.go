package sandbox

import "time"

// BackendName is a kind of machine.
type BackendName string

// The backends.
const (
	BackendContainer BackendName = "container"
	BackendMicroVM   BackendName = "microvm"
	BackendFullVM    BackendName = "fullvm"
	BackendFnCall    BackendName = "fncall"
	BackendFake      BackendName = "fake" // scale tests only
)

// State of a sandbox.
type State string

// The states, in order; Running and Paused alternate.
const (
	StateCreating State = "creating"
	StateRunning  State = "running"
	StatePaused   State = "paused"
	StateStopping State = "stopping"
	StateStopped  State = "stopped"
)

// Limits bound what an instance may use; all are set (no zero defaults) when a Backend sees them, but for the
// I/O rates, where 0 means no limit of its own.
type Limits struct {
	MemoryBytes int64 // bytes
	CPUMillis   int64 // thousandths of a core
	Pids        int64
	DiskBytes   int64 // size of the writable layer
	ShmBytes    int64 // size of /dev/shm
	IOReadBPS   int64 // bytes per second
	IOWriteBPS  int64
}

// LayerRef is one layer of a stack, resolved to its digest.
type LayerRef struct {
	Digest  string
	Kind    string // base, workspace, toolkit
	Name    string
	Version string
}

// Spec is what a Backend needs to know to make an instance: a plain value, resolved and complete.
type Spec struct {
	ID              ID // chosen by the Backend when empty (image-agnostic shells carry theirs already)
	Backend         BackendName
	Layers          []LayerRef   // bottom to top
	Snapshots       []SnapshotID // above the layers, bottom to top: what sandboxes that this one was forked from had written
	Limits          Limits
	Hostname        string   // empty = the id
	Env             []string // NAME=value: image, sandbox and secrets merged; default environment of commands
	User            string   // default user of commands; empty = root
	Workdir         string   // default directory; empty = home of the user, else /
	NoNewPrivileges bool

	CloudInit *CloudInit // nil = none; where Capabilities.CloudInit

	Network           NetworkPolicy // nil = loopback only
	NetworkGeneration uint64        // of Network, 1 or more
}

// CloudInit is what a machine's seed disk holds.
type CloudInit struct {
	UserData, MetaData, NetworkConfig []byte
}

// Stats of a running instance, as the kernel accounts them.
type Stats struct {
	At               time.Time
	CPUUsage         time.Duration
	MemoryBytes      int64
	MemoryPeakBytes  int64
	MemoryLimitBytes int64
	DiskBytes        int64
	DiskLimitBytes   int64
	Pids             int64
	PidsLimit        int64
	OOMKills         int64
	SavedBytes       int64 // of memory on disk, while a Saver is saved
}
