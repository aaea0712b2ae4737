package confine

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sort"

	"github.com/opendsec/dsec/internal/linux"
)

// Rule is what happens to one system call. Without Args it is refused with Errno; with Args, only if one of
// them matches.
type Rule struct {
	Call  string
	Errno uint16
	Args  []Arg
}

// Arg matches when argument Index, masked, equals one of Values (low 32 bits are compared). Not inverts: it
// matches when none is equal.
type Arg struct {
	Index  int
	Mask   uint32
	Values []uint32
	Not    bool
}

const (
	eperm        = 1
	enosys       = 38
	eafnosupport = 97

	retAllow = 0x7fff0000
	retErrno = 0x00050000
)

// namespaceFlags are the CLONE_NEW* bits of clone's flags.
const namespaceFlags = 0x7e020000

// Default are the rules of every sandbox. What is unknown to this table's kernel headers is ENOSYS, so that
// programs fall back; clone3 too, because a filter cannot look at its flags.
func Default() []Rule {
	refused := []string{
		// modules, boot, kexec, swap, clocks, ports: the node's
		"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff",
		"settimeofday", "clock_settime", "iopl", "ioperm", "acct", "syslog", "vhangup",
		// mounts and namespaces: the sandbox's shape is fixed
		"mount", "umount2", "pivot_root", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
		"mount_setattr", "unshare", "setns", "quotactl", "quotactl_fd",
		// wide attack surface that no task needs
		"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
		"add_key", "request_key", "keyctl", "lookup_dcookie", "nfsservctl", "_sysctl", "uselib", "ustat", "sysfs",
		"create_module", "get_kernel_syms", "query_module", "open_by_handle_at", "fanotify_init", "kcmp",
		"move_pages", "migrate_pages", "process_madvise",
	}
	var rules []Rule
	for _, c := range refused {
		rules = append(rules, Rule{Call: c, Errno: eperm})
	}
	return append(rules,
		Rule{Call: "clone3", Errno: enosys},
		Rule{Call: "clone", Errno: eperm, Args: []Arg{{Index: 0, Mask: namespaceFlags, Values: []uint32{0}, Not: true}}},
		// AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET; no vsock, no crypto sockets, no exotic protocols
		Rule{Call: "socket", Errno: eafnosupport, Args: []Arg{{Index: 0, Mask: ^uint32(0), Values: []uint32{1, 2, 10, 16, 17}, Not: true}}},
		Rule{Call: "socketpair", Errno: eafnosupport, Args: []Arg{{Index: 0, Mask: ^uint32(0), Values: []uint32{1, 2, 10, 16, 17}, Not: true}}},
		// execution domains: Linux, with ADDR_NO_RANDOMIZE and UNAME26, or a query
		Rule{Call: "personality", Errno: eperm, Args: []Arg{{Index: 0, Mask: ^uint32(0),
			Values: []uint32{0, 8, 0x40000, 0x40008, 0x20000, 0x20008, 0xffffffff}, Not: true}}},
		Rule{Call: "ioctl", Errno: eperm, Args: []Arg{
			// pushing input into terminals
			{Index: 1, Mask: ^uint32(0), Values: []uint32{0x5412, 0x541c}},
			// file systems: XFS_IOC_SWAPEXT (has shut a volume down), XFS_IOC_FSSETDM, extent moves of ext4, freeze,
			// thaw and trim
			{Index: 1, Mask: ^uint32(0), Values: []uint32{0xc0c0586d, 0xc0105864, 0xc028660f, 0xc0045877, 0xc0045878, 0xc0185879}},
		}},
	)
}

// Program compiles rules into classic BPF as the kernel takes it: eight bytes an instruction, native order.
// Error: a rule that the table of system calls cannot express.
func Program(rules []Rule) ([]byte, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("system-call filter: %s has no table yet", runtime.GOARCH)
	}
	byCall := map[int][]Rule{}
	for _, r := range rules {
		nr, ok := linux.SyscallNumber(r.Call)
		if !ok { // left out, it would be allowed
			return nil, fmt.Errorf("system-call filter: the table has no %q: add it to internal/linux", r.Call)
		}
		byCall[nr] = append(byCall[nr], r)
	}
	nrs := make([]int, 0, len(byCall))
	for nr := range byCall {
		nrs = append(nrs, nr)
	}
	sort.Ints(nrs)

	var p prog
	p.add(ldAbs, 0, 0, 4) // seccomp_data.arch
	p.add(jeq, 1, 0, 0xc000003e)
	p.ret(retErrno | enosys)
	p.add(ldAbs, 0, 0, 0) // seccomp_data.nr
	// The x32 calls and everything newer than the table.
	p.add(jgt, 0, 1, uint32(linux.MaxSyscall))
	p.ret(retErrno | enosys)
	for _, nr := range nrs {
		var body prog
		for _, r := range byCall[nr] {
			if err := body.rule(r); err != nil {
				return nil, err
			}
		}
		if len(body.ins) > 250 {
			return nil, fmt.Errorf("rule of system call %d is too long", nr)
		}
		p.add(jeq, 0, uint8(len(body.ins)), uint32(nr))
		p.ins = append(p.ins, body.ins...)
	}
	p.ret(retAllow)
	if len(p.ins) > 4096 {
		return nil, fmt.Errorf("system-call filter has %d instructions, at most 4096", len(p.ins))
	}
	return p.bytes(), nil
}

// Classic BPF operation codes (linux/filter.h).
const (
	ldAbs  = 0x20
	jeq    = 0x15
	jgt    = 0x25
	andK   = 0x54
	retK   = 0x06
	argOff = 16 // seccomp_data.args, low half first on little-endian machines
)

type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

type prog struct{ ins []instruction }

func (p *prog) add(code uint16, jt, jf uint8, k uint32) {
	p.ins = append(p.ins, instruction{code, jt, jf, k})
}
func (p *prog) ret(v uint32) { p.add(retK, 0, 0, v) }

// rule emits the body that runs once the call's number has matched; it always returns.
func (p *prog) rule(r Rule) error {
	if len(r.Args) == 0 {
		p.ret(retErrno | uint32(r.Errno))
		return nil
	}
	for _, a := range r.Args {
		if a.Index < 0 || a.Index > 5 || len(a.Values) > 60 {
			return fmt.Errorf("rule of %s: bad argument", r.Call)
		}
		p.add(ldAbs, 0, 0, uint32(argOff+8*a.Index))
		if a.Mask != ^uint32(0) {
			p.add(andK, 0, 0, a.Mask)
		}
		n := len(a.Values)
		for i, v := range a.Values {
			// An equal value jumps past the others: over the refusal when Not, else onto it.
			rest := uint8(n - i - 1)
			if a.Not {
				p.add(jeq, rest+1, 0, v)
			} else if i < n-1 {
				p.add(jeq, rest, 0, v)
			} else {
				p.add(jeq, 0, 1, v)
			}
		}
		p.ret(retErrno | uint32(r.Errno))
	}
	p.ret(retAllow)
	return nil
}

func (p *prog) bytes() []byte {
	out := make([]byte, 0, 8*len(p.ins))
	for _, i := range p.ins {
		out = binary.NativeEndian.AppendUint16(out, i.code)
		out = append(out, i.jt, i.jf)
		out = binary.NativeEndian.AppendUint32(out, i.k)
	}
	return out
}
