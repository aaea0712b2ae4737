"""What root in a sandbox tries against its dsec-init and the node. Prints a line for everything that worked."""

import ctypes
import errno
import fcntl
import glob
import os
import pty
import socket
import struct
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)


def call(nr, *a):
    r = libc.syscall(ctypes.c_long(nr), *[ctypes.c_long(x) if isinstance(x, int) else x for x in a])
    return r if r >= 0 else -ctypes.get_errno()


def worked(what):
    print("WORKED:", what, flush=True)


def refused(what, f):
    try:
        f()
    except (OSError, PermissionError):
        return
    worked(what)


def read(path, n=16):
    with open(path, "rb") as f:
        if not f.read(n):
            raise OSError("empty")


def write(path, data=b"0"):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


tids = [int(t) for t in os.listdir("/proc/1/task")]
buf = ctypes.create_string_buffer(64)
iov, far = struct.pack("QQ", ctypes.addressof(buf), 16), struct.pack("QQ", 0x400000, 16)


def memory():
    for d in ["/proc/1/", *glob.glob("/proc/1/task/*/")]:
        for name in ["mem", "environ", "maps", "smaps", "auxv", "pagemap", "io", "syscall", "stack", "personality"]:
            refused("read " + d + name, lambda: read(d + name))
        for name in ["fd", "fdinfo", "map_files"]:
            refused("list " + d + name, lambda: os.listdir(d + name))
        for name in ["root/etc/passwd", "cwd/etc/passwd", "exe"]:
            refused("open " + d + name, lambda: read(d + name, 1))
        for name in ["exe", "root", "cwd", "fd/0", "fd/3", "ns/net", "ns/mnt", "ns/user", "ns/pid"]:
            refused("readlink " + d + name, lambda: os.readlink(d + name))
        for name in ["mem", "oom_score_adj", "clear_refs", "coredump_filter", "comm", "setgroups", "uid_map", "timerslack_ns"]:
            refused("write " + d + name, lambda: write(d + name))
    for t in tids:
        for request in (16, 0x4206):
            if call(101, request, t, 0, 0) >= 0:
                worked(f"ptrace {request:#x} of {t}")
        if call(310, t, iov, 1, far, 1, 0) >= 0:
            worked("process_vm_readv")
        if call(311, t, iov, 1, far, 1, 0) >= 0:
            worked("process_vm_writev")
    for kind in range(1, 8):
        if call(312, os.getpid(), 1, kind, 0, 0) >= 0:
            worked("kcmp")


def descriptors():
    pidfd = call(434, 1, 0)
    for fd in range(128):
        if call(438, pidfd, fd, 0) >= 0:
            worked(f"pidfd_getfd {fd}")
    for flag in (0x20000, 0x40000000, 0x10000000, 0x02000000, 0x04000000, 0x08000000, 0x20000000):
        if call(308, pidfd, flag) >= 0:
            worked(f"setns {flag:#x}")
    if call(440, pidfd, far, 1, 21, 0) >= 0:
        worked("process_madvise")
    if call(448, pidfd, 0) >= 0:
        worked("process_mrelease")


def signals():
    pidfd = call(434, 1, 0)
    info = struct.pack("iiiiii", 0, 0, -1, 0, 1, 0) + b"\0" * 104
    for sig in range(0, 65):
        if sig != 9 and sig != 19:
            call(62, 1, sig)  # those two, like the others, are for the kernel to drop
        for t in tids:
            call(234, 1, t, sig)
            call(200, t, sig)
            call(297, 1, t, sig, struct.pack("i", sig) + info[4:])
        call(129, 1, sig, struct.pack("i", sig) + info[4:])
        call(424, pidfd, sig, 0, 0)
    call(62, 1, 9)
    call(62, 1, 19)


def sockets():
    for line in open("/proc/net/unix"):
        name = line.split()[-1]
        if not name.startswith(("/", "@")):
            continue
        worked("a socket in view: " + line)
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        for at in ["/proc/1/fd/3", "/proc/1/fd/4", "/channel", "/run/channel", "\0dsec", "\0channel", "/run/docker.sock"]:
            s = socket.socket(socket.AF_UNIX, kind)
            refused(f"connect {at!r}", lambda: s.connect(at))
            s.close()
    for family in (40, 38, 9, 11, 21, 29, 30, 31, 43, 44):  # vsock, alg, x25, rds, can, tipc, bluetooth, smc, xdp
        refused(f"socket family {family}", lambda: socket.socket(family, socket.SOCK_STREAM))
    for addr in ["169.254.169.254", "10.0.0.1", "8.8.8.8"]:
        s = socket.socket()
        s.settimeout(1)
        refused("connect " + addr, lambda: s.connect((addr, 80)))


def groups():
    for at, dirs, files in os.walk("/sys/fs/cgroup"):
        refused("make a group in " + at, lambda: os.mkdir(at + "/x"))
        for f in files:
            refused(f"write {at}/{f}", lambda: write(at + "/" + f, b"max" if f.endswith("max") else b"0"))
    for f in ["/proc/1/cgroup", "/proc/self/cgroup"]:
        for line in open(f):
            path = line.rstrip("\n").split(":", 2)[2]
            if "dsec" in path or path.count("/") > 3:
                worked(f"the node's groups in {f}: {line}")
    refused("mount cgroup2", lambda: mount(b"cgroup2"))


def mount(kind):
    if libc.mount(b"none", b"/mnt", kind, 0, None):
        raise OSError(ctypes.get_errno(), "mount")


def kernel():
    for kind in (b"tmpfs", b"proc", b"sysfs", b"cgroup", b"cgroup2", b"overlay", b"devpts", b"bpf", b"debugfs", b"fuse", b"erofs"):
        refused(f"mount {kind}", lambda: mount(kind))
    for name, nr, *args in [
        ("umount", 166, b"/proc", 2), ("pivot_root", 155, b"/", b"/"), ("open_tree", 428, -100, b"/", 1), ("fsopen", 430, b"tmpfs", 0),
        ("unshare user", 272, 0x10000000), ("unshare net", 272, 0x40000000), ("unshare mnt", 272, 0x20000), ("unshare pid", 272, 0x20000000),
        ("clone3", 435, b"\0" * 88, 88), ("clone newuser", 56, 0x10000000 | 17, 0, 0, 0, 0),
        ("keyctl", 250, 0, -3, 1), ("add_key", 248, b"user", b"x", b"y", 1, -3), ("request_key", 249, b"user", b"x", None, -3),
        ("io_uring_setup", 425, 8, buf), ("bpf", 321, 0, buf, 64), ("perf_event_open", 298, buf, 0, -1, -1, 0), ("userfaultfd", 323, 0),
        ("init_module", 175, buf, 16, b""), ("finit_module", 313, 0, b"", 0), ("delete_module", 176, b"x", 0), ("kexec_load", 246, 0, 0, None, 0),
        ("reboot", 169, 0xFEE1DEAD, 672274793, 0x89ABCDEF, None), ("swapon", 167, b"/etc/passwd", 0), ("acct", 163, b"/tmp/acct"),
        ("syslog", 103, 3, buf, 16), ("iopl", 172, 3), ("ioperm", 173, 0, 1, 1), ("quotactl", 179, 0, None, 0, buf),
        ("clock_settime", 227, 0, struct.pack("qq", 1, 1)), ("settimeofday", 164, struct.pack("qq", 1, 1), None), ("adjtimex", 159, struct.pack("I", 1) + b"\0" * 204),
        ("open_by_handle_at", 304, -100, b"\0" * 64, 0), ("fanotify_init", 300, 0, 0), ("lookup_dcookie", 212, 1, buf, 16), ("vhangup", 153),
        ("personality", 135, 0x0400000), ("nfsservctl", 180, 0, buf, buf),
        ("a call newer than the filter", 600), ("an x32 call", 0x40000000 + 39),
    ]:
        r = call(nr, *args)
        if r >= 0:
            if nr == 56 and r == 0:
                os._exit(0)
            worked(f"{name}: {r}")
    for path in ["/proc/kcore", "/proc/kmsg", "/proc/kpagecgroup", "/proc/kpagecount", "/proc/kpageflags", "/proc/kallsyms", "/proc/keys", "/proc/timer_list",
                 "/proc/slabinfo", "/proc/vmallocinfo", "/dev/mem", "/dev/kmsg", "/dev/vda", "/dev/sda", "/dev/loop0", "/dev/fuse", "/dev/btrfs-control",
                 "/dev/kvm", "/dev/net/tun", "/sys/kernel/debug/sched", "/sys/kernel/security/lsm", "/sys/firmware/acpi"]:
        refused("read " + path, lambda: read(path, 1))
    for path, data in [("/proc/sysrq-trigger", b"h"), ("/proc/sys/kernel/core_pattern", b"|/x"), ("/proc/sys/kernel/panic", b"1"),
                       ("/proc/sys/kernel/hostname", b"x"), ("/proc/sys/fs/binfmt_misc/register", b":x:M::x::/x:"), ("/proc/sys/vm/drop_caches", b"1"),
                       ("/proc/sys/kernel/pid_max", b"301"), ("/proc/sys/user/max_user_namespaces", b"1"), ("/proc/sys/net/ipv4/ip_forward", b"1"),
                       ("/sys/kernel/mm/transparent_hugepage/enabled", b"never"), ("/sys/block/vda/queue/scheduler", b"none"),
                       ("/sys/class/net/lo/mtu", b"100"), ("/proc/irq/0/smp_affinity", b"1")]:
        refused("write " + path, lambda: write(path, data))
    for path, dev in [("/tmp/disk", os.makedev(254, 0)), ("/tmp/loop", os.makedev(7, 0)), ("/tmp/kmsg", os.makedev(1, 11))]:
        refused("mknod " + path, lambda: os.mknod(path, 0o060600 if "kmsg" not in path else 0o020600, dev))


def ioctls():
    with open("/tmp/f", "wb") as f:
        f.write(b"x" * 65536)
        f.flush()
        for name, nr in [("XFS_IOC_SWAPEXT", 0xC0C0586D), ("XFS_IOC_GOINGDOWN", 0x8004587D), ("FIFREEZE", 0xC0045877), ("FITHAW", 0xC0045878), ("FITRIM", 0xC0185879),
                         ("EXT4_IOC_MOVE_EXT", 0xC028660F), ("EXT4_IOC_SHUTDOWN", 0x8004587D), ("BTRFS_IOC_SNAP_CREATE", 0x50009401),
                         ("BTRFS_IOC_SUBVOL_CREATE", 0x5000940E), ("BTRFS_IOC_SNAP_DESTROY", 0x5000940F), ("BTRFS_IOC_QUOTA_CTL", 0xC0109428),
                         ("BTRFS_IOC_QGROUP_LIMIT", 0x8030942B), ("BTRFS_IOC_BALANCE", 0x5000940C), ("BTRFS_IOC_SYNC", 0x9408),
                         ("BTRFS_IOC_TREE_SEARCH", 0xD0009411), ("BTRFS_IOC_INO_LOOKUP", 0xD0009412), ("FS_IOC_SETFLAGS", 0x40086602)]:
            for target in (f.fileno(), os.open("/", os.O_RDONLY)):
                refused(name, lambda: fcntl.ioctl(target, nr, bytearray(4096) if nr != 0x40086602 else struct.pack("l", 0x10), True))
    master, slave = pty.openpty()
    refused("TIOCSTI", lambda: fcntl.ioctl(slave, 0x5412, b"x"))
    refused("TIOCLINUX", lambda: fcntl.ioctl(slave, 0x541C, b"\x02"))


def platform():
    """Nothing of the platform is readable."""
    for root in ("/", "/run", "/var", "/tmp", "/opt", "/dev/shm"):
        for name in os.listdir(root):
            if "dsec" in name or "aether" in name or "chronus" in name:
                worked(f"platform file {root}/{name}")
    for p in glob.glob("/proc/[0-9]*"):
        try:
            with open(p + "/cmdline", "rb") as f:
                line = f.read()
        except OSError:
            continue
        if p != "/proc/1" and b"dsec" in line:
            worked(f"platform process {p}: {line}")
    for line in open("/proc/self/mountinfo"):
        if "/var/lib" in line or "dsec" in line or " - ext4" in line:
            worked("the node's paths: " + line)
    for fd in os.listdir("/proc/self/fd"):
        try:
            at = os.readlink("/proc/self/fd/" + fd)
        except OSError:
            continue
        if int(fd) > 2 and not at.startswith("/proc/"):
            worked(f"inherited descriptor {fd}: {at}")


for name in sys.argv[1].split(","):
    {"memory": memory, "descriptors": descriptors, "signals": signals, "sockets": sockets, "groups": groups, "kernel": kernel,
     "ioctls": ioctls, "platform": platform}[name]()
print("done")
