package sandbox

import "fmt"

// Blame says whose doing an end was. What a sandbox can cause is never infra; what the platform causes is
// never task.
type Blame string

// The four blames.
const (
	BlameTask   Blame = "task"
	BlameUser   Blame = "user"
	BlamePolicy Blame = "policy"
	BlameInfra  Blame = "infra"
)

// Kind is a terminal reason of a command or a sandbox.
type Kind string

// All kinds, each with its blame in the table below.
const (
	KindExited           Kind = "exited"         // command: its leader exited, any code
	KindSignalled        Kind = "signalled"      // command: a signal ended its leader
	KindTimedOut         Kind = "timed_out"      // command: its own timeout
	KindOOMKilled        Kind = "oom_killed"     // its own memory limit
	KindDiskFull         Kind = "disk_full"      // its own disk limit
	KindOutputLimit      Kind = "output_limit"   // function call: more output than it may write
	KindGuestPanicked    Kind = "guest_panicked" // the guest's kernel
	KindInitKilled       Kind = "init_killed"    // the sandbox destroyed its dsec-init
	KindCannotStart      Kind = "cannot_start"   // command: no such user, directory or program
	KindStopped          Kind = "stopped"
	KindKilled           Kind = "killed" // command: ended by a request of the user
	KindTTLExpired       Kind = "ttl_expired"
	KindIdleExpired      Kind = "idle_expired"
	KindCreateDeadline   Kind = "create_deadline"
	KindDenied           Kind = "denied"
	KindNodeOOM          Kind = "node_oom"
	KindNodeLost         Kind = "node_lost"
	KindNodeRestarted    Kind = "node_restarted"
	KindImageUnavailable Kind = "image_unavailable"
	KindStoreFault       Kind = "store_fault"
	KindNetworkFault     Kind = "network_fault"
	KindBootFailed       Kind = "boot_failed"
	KindVMMCrashed       Kind = "vmm_crashed"
	KindPreempted        Kind = "preempted"
	KindInternal         Kind = "internal"
)

// Blames is the one table of whose fault each kind is.
var Blames = map[Kind]Blame{
	KindExited: BlameTask, KindSignalled: BlameTask, KindTimedOut: BlameTask, KindOOMKilled: BlameTask,
	KindDiskFull: BlameTask, KindOutputLimit: BlameTask, KindGuestPanicked: BlameTask, KindInitKilled: BlameTask, KindCannotStart: BlameUser,
	KindStopped: BlameUser, KindKilled: BlameUser, KindTTLExpired: BlamePolicy, KindIdleExpired: BlamePolicy,
	KindCreateDeadline: BlamePolicy, KindDenied: BlamePolicy,
	KindNodeOOM: BlameInfra, KindNodeLost: BlameInfra, KindNodeRestarted: BlameInfra,
	KindImageUnavailable: BlameInfra, KindStoreFault: BlameInfra, KindNetworkFault: BlameInfra,
	KindBootFailed: BlameInfra, KindVMMCrashed: BlameInfra, KindPreempted: BlameInfra, KindInternal: BlameInfra,
}

// Failure is the terminal reason of a command or sandbox: what, whose fault, one sentence, and evidence
// (at most 4 KiB). It is an error so that drivers can return it.
type Failure struct {
	Kind     Kind
	Blame    Blame
	Message  string
	Evidence string
}

// NewFailure makes a Failure with the blame of its kind.
func NewFailure(kind Kind, format string, args ...any) *Failure {
	return &Failure{Kind: kind, Blame: Blames[kind], Message: fmt.Sprintf(format, args...)}
}

func (f *Failure) Error() string { return fmt.Sprintf("%s (%s): %s", f.Kind, f.Blame, f.Message) }
