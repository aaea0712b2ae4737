package stage

// Masked files read as /dev/null, masked directories as empty. Paths that do not exist are skipped.
var masked = []string{
	"proc/acpi",
	"proc/asound",
	"proc/interrupts",
	"proc/kallsyms",
	"proc/kcore",
	"proc/keys",
	"proc/kmsg",
	"proc/kpagecgroup",
	"proc/kpagecount",
	"proc/kpageflags",
	"proc/latency_stats",
	"proc/modules",
	"proc/sched_debug",
	"proc/scsi",
	"proc/slabinfo",
	"proc/sysrq-trigger",
	"proc/timer_list",
	"proc/timer_stats",
	"proc/vmallocinfo",
	"sys/devices/virtual/powercap",
	"sys/firmware",
	"sys/fs/btrfs",
	"sys/fs/ext4",
	"sys/fs/fuse",
	"sys/fs/selinux",
	"sys/fs/xfs",
	"sys/kernel/btf",
	"sys/kernel/debug",
	"sys/kernel/security",
	"sys/kernel/tracing",
}

// readOnly directories of /proc. net.* below proc/sys stays read-only as well: what a sandbox may tune is
// the platform's decision.
var readOnly = []string{
	"proc/bus",
	"proc/fs",
	"proc/irq",
	"proc/sys",
}

// devices are bound from the host's /dev: a user namespace cannot make device nodes.
var devices = []string{"full", "null", "random", "tty", "urandom", "zero"}

// links in /dev.
var links = [][2]string{
	{"/proc/self/fd", "dev/fd"},
	{"/proc/self/fd/0", "dev/stdin"},
	{"/proc/self/fd/1", "dev/stdout"},
	{"/proc/self/fd/2", "dev/stderr"},
	{"pts/ptmx", "dev/ptmx"},
}

// maxTerminals bounds a sandbox's pseudo-terminals: the kernel has a few thousand for all of them.
const maxTerminals = 128

// DefaultShm is the size of /dev/shm in bytes when a claim does not say.
const DefaultShm = 64 << 20
