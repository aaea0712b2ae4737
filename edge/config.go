package edge

import (
	"cmp"
	"log/slog"
	"runtime"
	"time"

	"github.com/opendsec/dsec/api/dsec/v1/dsecv1connect"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/sandbox"
)

// Config of an edge. Zero fields get the defaults that their comments name.
type Config struct {
	ID       sandbox.EdgeID // required
	StateDir string         // required; sandboxes/ lies in it
	Version  string

	// Admission.
	MaxSandboxes  int   // live ones, creations included; 4096
	MaxWaiting    int   // sandboxes in creation or waiting for it; 4096
	Parallel      int   // creations at once; twice the CPUs
	MinFreeMemory int64 // bytes that stay available on the node; a sixteenth of its memory, at most 1 GiB
	ReserveMemory int64 // bytes that one more sandbox is reckoned to take at once; 16 MiB

	// Packer makes layers of what sandboxes have written; nil: there are no packs.
	Packer dsecv1connect.PackServiceClient

	// Network compiles network rules; nil: sandboxes have loopback only.
	Network *network.Compiler
	// NetworkBy is what enforces them, and NetworkLacks what that does without; GetNode tells.
	NetworkBy    string
	NetworkLacks []string
	// NetworkAbsent says why there is none, for refusals and GetNode.
	NetworkAbsent string

	// StoreFault is asked when a command fails; nil: layers lie on this machine.
	StoreFault StoreFaults
	// NewStoreFaults returns what was found since it was asked last, from the beginning at first; nil: nothing is.
	NewStoreFaults func() []StoreFault

	// Limits of sandboxes.
	DefaultLimits  sandbox.Limits
	MaxLimits      sandbox.Limits
	DefaultTTL     time.Duration // 0 = none
	MaxTTL         time.Duration // 30 days
	CreateTimeout  time.Duration // default; 60 s
	DefaultBackend sandbox.BackendName

	// Bounds within a sandbox.
	MaxCommands int // running at once; 1024
	MaxSessions int // 64
	MaxQueue    int // commands waiting in one session; 64

	Record record.Options
	// PauseKeepsMemory is how long a paused sandbox keeps its memory before it is put on disk, where its backend can; 30 s,
	// negative: always.
	PauseKeepsMemory time.Duration
	// SaveRetry is how long one that could not be put away keeps it, at least; 1 min.
	SaveRetry time.Duration

	// SavedSpace is what machines may save on disk and what of it is used, bytes, for GetNode; nil: there are no machines.
	SavedSpace func() (size, used int64, err error)

	Retention time.Duration // how long ended sandboxes are kept; 1 h
	RetainMax int           // ended sandboxes kept; 10,000
	// AnswerLimit is how long a sandbox whose machine runs may leave its channel unanswered until it is ended; 2 min. Those
	// that share the node's kernel have SharedAnswerLimit at most; 15 s.
	AnswerLimit       time.Duration
	SharedAnswerLimit time.Duration
	StartTimeout      time.Duration // how long dsec-init may take to start a command; 30 s
	KeepAlive         time.Duration // between keepalives of idle streams; 20 s

	Clock Clock
}

// Clock is where time comes from; a zero field is the real one.
type Clock struct {
	Wall   func() time.Time
	Boot   func() time.Duration // since the machine booted
	BootID string
	// AvailableMemory of the node, in bytes.
	AvailableMemory func() (int64, error)
}

func (c *Config) defaults() error {
	c.MaxSandboxes = cmp.Or(c.MaxSandboxes, 4096)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 4096)
	c.Parallel = cmp.Or(c.Parallel, 2*runtime.NumCPU())
	c.ReserveMemory = cmp.Or(c.ReserveMemory, 16<<20)
	c.MaxTTL = cmp.Or(c.MaxTTL, 30*24*time.Hour)
	c.CreateTimeout = cmp.Or(c.CreateTimeout, time.Minute)
	c.DefaultBackend = cmp.Or(c.DefaultBackend, sandbox.BackendContainer)
	c.MaxCommands = cmp.Or(c.MaxCommands, 1024)
	c.MaxSessions = cmp.Or(c.MaxSessions, 64)
	c.MaxQueue = cmp.Or(c.MaxQueue, 64)
	c.PauseKeepsMemory = cmp.Or(c.PauseKeepsMemory, 30*time.Second)
	c.SaveRetry = cmp.Or(c.SaveRetry, time.Minute)
	c.Retention = cmp.Or(c.Retention, time.Hour)
	c.RetainMax = cmp.Or(c.RetainMax, 10_000)
	c.AnswerLimit = cmp.Or(c.AnswerLimit, 2*time.Minute)
	c.SharedAnswerLimit = cmp.Or(c.SharedAnswerLimit, 15*time.Second)
	c.StartTimeout = cmp.Or(c.StartTimeout, 30*time.Second)
	c.KeepAlive = cmp.Or(c.KeepAlive, 20*time.Second)
	if c.Clock.Wall == nil {
		c.Clock.Wall = time.Now
	}
	if c.Clock.Boot == nil {
		c.Clock.Boot = linux.BootTime
	}
	if c.Clock.AvailableMemory == nil {
		c.Clock.AvailableMemory = availableMemory
	}
	if c.Clock.BootID == "" {
		id, err := linux.BootID()
		if err != nil {
			return err
		}
		c.Clock.BootID = id
	}
	total, err := totalMemory()
	if err != nil {
		return err
	}
	c.MinFreeMemory = cmp.Or(c.MinFreeMemory, min(total/16, 1<<30))
	defaultLimits(&c.DefaultLimits, &c.MaxLimits, total)
	c.Record.Clock = func() (time.Time, time.Duration) { return c.Clock.Wall(), c.Clock.Boot() }
	return nil
}

// maxCPUs is what a sandbox may ask for on any node: CPU is overcommitted, and a task's spec is not written for one
// machine. What the node lacks is simply never used, so that only more than maxCPUs, or more than a larger node has,
// is refused; memory, which would be missed, is bounded by the node's.
const maxCPUs = 64

func defaultLimits(d, m *sandbox.Limits, memory int64) {
	m.MemoryBytes = cmp.Or(m.MemoryBytes, memory)
	m.CPUMillis = cmp.Or(m.CPUMillis, max(int64(runtime.NumCPU()), maxCPUs)*1000)
	m.Pids = cmp.Or(m.Pids, 16384)
	m.DiskBytes = cmp.Or(m.DiskBytes, 1<<40)
	m.IOReadBPS = cmp.Or(m.IOReadBPS, 1<<40)
	m.IOWriteBPS = cmp.Or(m.IOWriteBPS, 1<<40)
	d.MemoryBytes = cmp.Or(d.MemoryBytes, min(4<<30, m.MemoryBytes))
	d.CPUMillis = cmp.Or(d.CPUMillis, min(4000, int64(runtime.NumCPU())*1000, m.CPUMillis))
	d.Pids = cmp.Or(d.Pids, min(2048, m.Pids))
	d.DiskBytes = cmp.Or(d.DiskBytes, min(10<<30, m.DiskBytes))
	d.ShmBytes = cmp.Or(d.ShmBytes, 64<<20)
}

func logger(l *slog.Logger) *slog.Logger {
	if l == nil {
		return slog.New(slog.DiscardHandler)
	}
	return l
}
