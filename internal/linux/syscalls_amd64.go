package linux

import "golang.org/x/sys/unix"

// MaxSyscall is the greatest system call number that this table was made with.
const MaxSyscall = 471

// SyscallNumber returns the number of a system call that policy names.
func SyscallNumber(name string) (int, bool) {
	n, ok := syscallNumbers[name]
	return n, ok
}

var syscallNumbers = map[string]int{
	"_sysctl":           unix.SYS__SYSCTL,
	"acct":              unix.SYS_ACCT,
	"add_key":           unix.SYS_ADD_KEY,
	"bpf":               unix.SYS_BPF,
	"clock_settime":     unix.SYS_CLOCK_SETTIME,
	"clone":             unix.SYS_CLONE,
	"clone3":            unix.SYS_CLONE3,
	"create_module":     unix.SYS_CREATE_MODULE,
	"delete_module":     unix.SYS_DELETE_MODULE,
	"fanotify_init":     unix.SYS_FANOTIFY_INIT,
	"fcntl":             unix.SYS_FCNTL,
	"finit_module":      unix.SYS_FINIT_MODULE,
	"fsconfig":          unix.SYS_FSCONFIG,
	"fsmount":           unix.SYS_FSMOUNT,
	"fsopen":            unix.SYS_FSOPEN,
	"fspick":            unix.SYS_FSPICK,
	"get_kernel_syms":   unix.SYS_GET_KERNEL_SYMS,
	"init_module":       unix.SYS_INIT_MODULE,
	"inotify_add_watch": unix.SYS_INOTIFY_ADD_WATCH,
	"io_uring_enter":    unix.SYS_IO_URING_ENTER,
	"io_uring_register": unix.SYS_IO_URING_REGISTER,
	"io_uring_setup":    unix.SYS_IO_URING_SETUP,
	"ioctl":             unix.SYS_IOCTL,
	"ioperm":            unix.SYS_IOPERM,
	"iopl":              unix.SYS_IOPL,
	"kcmp":              unix.SYS_KCMP,
	"kexec_file_load":   unix.SYS_KEXEC_FILE_LOAD,
	"kexec_load":        unix.SYS_KEXEC_LOAD,
	"keyctl":            unix.SYS_KEYCTL,
	"lookup_dcookie":    unix.SYS_LOOKUP_DCOOKIE,
	"migrate_pages":     unix.SYS_MIGRATE_PAGES,
	"mount":             unix.SYS_MOUNT,
	"mount_setattr":     unix.SYS_MOUNT_SETATTR,
	"move_mount":        unix.SYS_MOVE_MOUNT,
	"move_pages":        unix.SYS_MOVE_PAGES,
	"nfsservctl":        unix.SYS_NFSSERVCTL,
	"open_by_handle_at": unix.SYS_OPEN_BY_HANDLE_AT,
	"open_tree":         unix.SYS_OPEN_TREE,
	"perf_event_open":   unix.SYS_PERF_EVENT_OPEN,
	"personality":       unix.SYS_PERSONALITY,
	"pivot_root":        unix.SYS_PIVOT_ROOT,
	"process_madvise":   unix.SYS_PROCESS_MADVISE,
	"query_module":      unix.SYS_QUERY_MODULE,
	"quotactl":          unix.SYS_QUOTACTL,
	"quotactl_fd":       unix.SYS_QUOTACTL_FD,
	"reboot":            unix.SYS_REBOOT,
	"request_key":       unix.SYS_REQUEST_KEY,
	"setns":             unix.SYS_SETNS,
	"settimeofday":      unix.SYS_SETTIMEOFDAY,
	"socket":            unix.SYS_SOCKET,
	"socketpair":        unix.SYS_SOCKETPAIR,
	"swapoff":           unix.SYS_SWAPOFF,
	"swapon":            unix.SYS_SWAPON,
	"sysfs":             unix.SYS_SYSFS,
	"syslog":            unix.SYS_SYSLOG,
	"umount2":           unix.SYS_UMOUNT2,
	"unshare":           unix.SYS_UNSHARE,
	"uselib":            unix.SYS_USELIB,
	"userfaultfd":       unix.SYS_USERFAULTFD,
	"ustat":             unix.SYS_USTAT,
	"vhangup":           unix.SYS_VHANGUP,
}
