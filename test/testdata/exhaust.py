"""Takes all it can get of one resource: exhaust.py RESOURCE SECONDS; or only a little: exhaust.py need RESOURCE."""

import ctypes
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
LITTLE = 4


def check(r):
    if r < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return r


class Tcp:
    """Connections whose receiver never reads."""

    family, kind = socket.AF_INET, socket.SOCK_STREAM

    def __init__(self):
        self.listener = socket.socket(self.family)
        self.listener.bind(("127.0.0.1", 0) if self.family == socket.AF_INET else f"\0{os.getpid()}")
        self.listener.listen(64)

    def one(self):
        c = socket.socket(self.family)
        c.settimeout(2)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        c.connect(self.listener.getsockname())
        s, _ = self.listener.accept()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sent = c.send(b"x" * 1000)  # something always fits
        assert sent > 0
        c.setblocking(False)
        try:
            while True:
                c.send(b"x" * 65536)
        except BlockingIOError:
            return c, s


class Unix(Tcp):
    family = socket.AF_UNIX


def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    for _ in range(200):
        s.sendto(b"x" * 60000, s.getsockname())
    return s


def timer():
    t = ctypes.c_void_p()
    check(libc.timer_create(1, None, ctypes.byref(t)))
    return t


def queued():
    check(libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, ctypes.c_void_p(1)))


names = iter(range(1 << 40))


def mqueue():
    fd = libc.mq_open(f"/q{os.getpid()}.{next(names)}".encode(), os.O_CREAT | os.O_RDWR, 0o600, None)
    return check(fd)


def shm():
    f = tempfile.TemporaryFile(dir="/dev/shm")
    f.write(b"x" * 65536)
    f.flush()
    return f


def sysvshm():
    i = check(libc.shmget(0, 1 << 20, 0o1600))
    libc.shmat.restype = ctypes.c_void_p
    p = libc.shmat(i, None, 0)
    if p in (None, ctypes.c_void_p(-1).value):
        raise OSError("shmat")
    ctypes.memset(p, 1, 1 << 20)


def pipe():
    r, w = os.pipe()
    os.set_blocking(w, False)
    try:
        while True:
            os.write(w, b"x" * 4096)
    except BlockingIOError:
        return r, w


def epoll():
    import select

    r, w = os.pipe()
    e = select.epoll()
    e.register(r)
    return r, w, e


def mlock():
    b = ctypes.create_string_buffer(1 << 20)
    check(libc.mlock(b, ctypes.c_size_t(1 << 20)))
    return b


def process():
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return pid


def thread():
    t = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
    t.start()
    return t


def disk():
    with open(f"/var/tmp/d{os.getpid()}.{next(names)}", "wb") as f:
        f.write(os.urandom(1 << 20))
        f.flush()


def inode():
    for _ in range(100):
        os.close(os.open(f"/var/tmp/i{os.getpid()}.{next(names)}", os.O_CREAT | os.O_WRONLY))


def deep():
    for _ in range(50):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)


def lock():
    import fcntl

    f = tempfile.TemporaryFile()
    for i in range(1000):
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * i)
    return f


# resource: (take one, processes that take, most in each)
TAKE = {
    "inotify": (lambda: check(libc.inotify_init1(0)), 8, 5000),
    "ptys": (lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY), 8, 5000),
    "tcp": (Tcp, 6, 300),
    "unix": (Unix, 6, 300),
    "udp": (udp, 6, 300),
    "signals": (queued, 4, 200_000),
    "timers": (timer, 4, 200_000),
    "mqueue": (mqueue, 4, 5000),
    "semaphores": (lambda: check(libc.semget(0, 250, 0o1600)), 1, 50_000),
    "sysvshm": (sysvshm, 1, 2000),
    "pipes": (pipe, 4, 20_000),
    "files": (lambda: os.open("/etc/hostname", os.O_RDONLY), 8, 50_000),
    "epoll": (epoll, 4, 20_000),
    "shm": (shm, 1, 10_000),
    "memory": (lambda: bytearray(os.urandom(1 << 20)), 2, 10_000),
    "mlock": (mlock, 1, 10_000),
    "processes": (process, 1, 5000),
    "threads": (thread, 2, 5000),
    "disk": (disk, 1, 1000),
    "inodes": (inode, 2, 20_000),
    "deep": (deep, 1, 2000),
    "locks": (lock, 2, 100),
}


def main():
    what = sys.argv[1]
    if what == "need":
        one, _, _ = TAKE[sys.argv[2]]
        if isinstance(one, type):
            one = one().one
        kept = [one() for _ in range(LITTLE)]
        for k in kept if sys.argv[2] == "processes" else ():
            os.kill(k, 9)
        os._exit(0)
    hold = float(sys.argv[2])
    if what == "forkbomb":
        print("has begun", flush=True)
        while True:
            try:
                os.fork()
            except OSError:
                pass
    if what == "cpu":
        for _ in range(50):
            if os.fork() == 0:
                break
        print("has begun", flush=True)
        end = time.monotonic() + hold
        while time.monotonic() < end:
            pass
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
    os.chdir("/var/tmp")
    one, takers, most = TAKE[what]
    children = []
    for _ in range(takers):
        r, w = os.pipe()
        pid = os.fork()
        if pid:
            os.close(w)
            children.append((pid, r))
            continue
        os.close(r)
        if isinstance(one, type):
            one = one().one
        kept, why, stop = [], "the bound of this test", time.monotonic() + 3 * hold
        try:
            while len(kept) < most and time.monotonic() < stop:
                kept.append(one())
        except (OSError, MemoryError, RuntimeError, AssertionError) as e:
            why = str(e)
        try:
            os.write(w, f"{len(kept)} ({why}) ".encode())
            os.close(w)
            time.sleep(hold)
        finally:
            if what == "processes":
                for k in kept:
                    os.kill(k, 9)
            os._exit(0)
    said = ""
    for _, r in children:
        with open(r, "rb") as f:
            said += f.read().decode()
    print("has", said or "died", flush=True)
    for pid, _ in children:
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            os.kill(os.getpid(), os.WTERMSIG(status))


main()
