package initd_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/opendsec/dsec/guest/guesttest"
	"github.com/opendsec/dsec/guest/wire"
)

// attack is what root in the sandbox tries against PID 1. It prints a line for everything that worked.
const attack = `
import ctypes, os, errno, struct, glob, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
def sys(nr, *a):
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    return r if r >= 0 else -ctypes.get_errno()
def bad(what): print("WORKED:", what)

# Its memory, descriptors, environment, namespaces.
for name in ["mem", "environ", "maps", "auxv", "pagemap", "io", "syscall", "stack", "map_files", "fdinfo", "fd"]:
    try:
        p = "/proc/1/" + name
        if os.path.isdir(p): os.listdir(p)
        else: open(p, "rb").read(16)
        bad("read " + p)
    except OSError: pass
for name in ["root/etc/passwd", "cwd/etc/passwd", "exe"]:
    try: open("/proc/1/" + name, "rb").read(1); bad("open /proc/1/" + name)
    except OSError: pass
for name in ["exe", "root", "cwd", "fd/3", "ns/net"]:
    try: os.readlink("/proc/1/" + name); bad("readlink " + name)
    except OSError: pass
for name in ["oom_score_adj", "clear_refs", "coredump_filter", "mem", "comm", "setgroups", "uid_map", "task/1/comm"]:
    try: f = open("/proc/1/" + name, "r+b", buffering=0); f.write(b"0"); bad("write /proc/1/" + name)
    except OSError: pass
for t in glob.glob("/proc/1/task/*/"):
    try: open(t + "mem", "rb"); bad("open " + t + "mem")
    except OSError: pass

# ptrace: ATTACH, SEIZE; each thread.
tids = [int(x) for x in os.listdir("/proc/1/task")]
for t in tids:
    if sys(101, 16, t, 0, 0) >= 0: bad("PTRACE_ATTACH")
    if sys(101, 0x4206, t, 0, 0) >= 0: bad("PTRACE_SEIZE")
buf = ctypes.create_string_buffer(16)
iov = struct.pack("QQ", ctypes.addressof(buf), 16)
if sys(310, 1, iov, 1, struct.pack("QQ", 0x400000, 16), 1, 0) >= 0: bad("process_vm_readv")
if sys(311, 1, iov, 1, struct.pack("QQ", 0x400000, 16), 1, 0) >= 0: bad("process_vm_writev")
if sys(312, os.getpid(), 1, 0, 0, 0) >= 0: bad("kcmp")

# Its descriptors by pidfd, its namespaces by setns.
pidfd = sys(434, 1, 0)
for fd in range(64):
    if sys(438, pidfd, fd, 0) >= 0: bad("pidfd_getfd %d" % fd)
for flag in [0x20000, 0x40000000, 0x10000000]:
    if sys(308, pidfd, flag) >= 0 and flag != 0x20000: pass
if sys(440, pidfd, struct.pack("QQ", 0x400000, 4096), 1, 21, 0) >= 0: bad("process_madvise")

# Signals, every one, every way: to the process, to each thread, queued with a forged origin, by pidfd.
info = struct.pack("iiiiii", 0, 0, -1, 0, 1, 0) + b"\0" * 104
for sig in range(1, 65):
    for f in [lambda: os.kill(1, sig), lambda: [sys(234, 1, t, sig) for t in tids],
              lambda: sys(129, 1, sig, struct.pack("i", sig) + info[4:]),
              lambda: [sys(297, 1, t, sig, struct.pack("i", sig) + info[4:]) for t in tids],
              lambda: sys(424, pidfd, sig, 0, 0)]:
        try: f()
        except OSError: pass

# Its socket.
for line in open("/proc/net/unix"):
    if "/" in line.split()[-1]: bad("socket in view: " + line)
for p in ["/proc/1/fd/3"]:
    try: s = socket.socket(socket.AF_UNIX); s.connect(p); bad("connect " + p)
    except OSError: pass
print("done")
`

func TestRootInside(t *testing.T) {
	for _, caps := range []string{"bounded", "all"} {
		t.Run(caps, func(t *testing.T) {
			var o guesttest.Options
			if caps == "all" {
				o.Args = []string{"-allcaps"}
			}
			s, c, r := guesttest.Sandbox(t, o, nil)
			ctx, cancel := guesttest.Context(t)
			defer cancel()
			b := &box{Shell: s, t: t, c: c, r: r, ctx: ctx}
			if caps == "all" {
				if got := b.sh("grep CapEff /proc/self/status"); !strings.Contains(got, "000001ff") {
					t.Fatal(got)
				}
			}
			res := b.run(wire.Start{Argv: []string{"python3", "-c", attack}})
			if out := string(res.All); out != "done\n" {
				t.Errorf("%+v\n%s", res.Exit, out)
			}
			// It goes on as if nothing had been.
			for range 10 {
				b.sh("true")
			}
			select {
			case <-s.Ended():
				t.Error("dsec-init has ended")
			default:
			}
			b.sh("kill -9 -1 2>/dev/null || true")
			b.sh("true")
		})
	}
}

// TestHostIsOutOfSight: neither a warm shell nor a sandbox has a mount or a path of the host.
func TestHostIsOutOfSight(t *testing.T) {
	warm := guesttest.Spawn(t, guesttest.Options{})
	warm.Open()
	b := newBox(t, nil)
	for name, pid := range map[string]int{"warm": warm.PID, "claimed": b.PID} {
		mounts, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(mounts)), "\n") {
			f := strings.Fields(line)
			kind := f[len(f)-3]
			switch at := f[4]; {
			case strings.HasPrefix(at, "/proc"), strings.HasPrefix(at, "/sys"), strings.HasPrefix(at, "/dev"):
			case at == "/" && (kind == "tmpfs" || kind == "overlay"), at == "/empty" && name == "warm":
			default:
				t.Errorf("%s: %s", name, line)
			}
			if kind == "ext4" || kind == "cgroup" {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	for script, want := range map[string]string{
		"for f in kcore kmsg sysrq-trigger kpagecount keys timer_list; do test ! -e /proc/$f || cat /proc/$f; done 2>&1 | head -c 100": "",
		"ls -A /sys/firmware /sys/kernel/debug 2>/dev/null | grep -v : | tr -d '\\n'":                                                  "",
		"echo 1 > /proc/sys/kernel/panic || echo refused":                                                                              "refused\n",
		"mknod /tmp/sda b 254 0 2>/dev/null || echo refused":                                                                           "refused\n",
		"mount -t tmpfs x /mnt 2>/dev/null || echo refused":                                                                            "refused\n",
		"unshare -n true 2>/dev/null || echo refused":                                                                                  "refused\n",
		"ls /dev | tr '\\n' ' '":                                                               "fd full mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero ",
		"cat /sys/class/net/lo/operstate; ls /sys/class/net":                                   "unknown\nlo\n",
		"echo x > /dev/null; head -c 3 /dev/zero | wc -c; echo y > /dev/shm/y; cat /dev/shm/y": "3\ny\n",
		"df -B1 --output=size /dev/shm | tail -1 | tr -d ' '":                                  "67108864\n",
		"ls /sys/fs/cgroup": "",
	} {
		res := b.run(wire.Start{Shell: script})
		if got := string(res.Bytes[wire.Stdout]); got != want {
			t.Errorf("%s: %q, want %q (%s)", script, got, want, res.Bytes[wire.Stderr])
		}
	}
}
