package fncall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// small are limits that hostile programs reach soon.
var small = Limits{CPU: slowness * 500 * time.Millisecond, Wall: slowness * 2 * time.Second, Memory: 64 << 20, Pids: 24, Output: 64 << 10, Files: 64, FileBytes: 8 << 20}

const includes = "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n#include <signal.h>\n" +
	"#include <sys/mman.h>\n#include <sys/wait.h>\n#include <fcntl.h>\n"

// TestHostile: each program ends, as it should, and takes nothing with it.
func TestHostile(t *testing.T) {
	s := newService(t)
	for name, c := range map[string]struct {
		runtime, code string
		want          []sandbox.Kind
		output        string // how stdout begins
	}{
		"fork for ever, shell":   {"shell", "f() { f | f & }; f; while :; do f; done", []sandbox.Kind{sandbox.KindTimedOut, sandbox.KindExited}, ""},
		"fork for ever, C":       {"c", includes + "int main(){for(;;)fork();}", []sandbox.Kind{sandbox.KindTimedOut}, ""},
		"fork for ever, python":  {"python", "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass", []sandbox.Kind{sandbox.KindTimedOut, sandbox.KindOOMKilled}, ""},
		"10 GB of file, shell":   {"shell", "head -c 10000000000 /dev/zero > big", []sandbox.Kind{sandbox.KindDiskFull}, ""},
		"10 GB of files, python": {"python", "for i in range(20):\n  open(f'/tmp/{i}','wb').write(bytes(1<<20))", []sandbox.Kind{sandbox.KindDiskFull}, ""},
		"files without number":   {"python", "for i in range(100000): open(f'/tmp/{i}','w')", []sandbox.Kind{sandbox.KindDiskFull}, ""},
		"fill /dev/shm":          {"shell", "head -c 10000000000 /dev/zero > /dev/shm/big", []sandbox.Kind{sandbox.KindDiskFull}, ""},
		"print for ever, shell":  {"shell", "yes", []sandbox.Kind{sandbox.KindOutputLimit}, "y\ny\n"},
		"print for ever, stderr": {"c", includes + "int main(){for(;;)write(2,\"xxxxxxxxxxxxxxxx\",16);}", []sandbox.Kind{sandbox.KindOutputLimit}, ""},
		"close outputs":          {"c", includes + "int main(){close(0);close(1);close(2);return 0;}", []sandbox.Kind{sandbox.KindExited}, ""},
		"ignore signals": {"python", "import signal\nfor n in range(1,65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass\nwhile True: pass",
			[]sandbox.Kind{sandbox.KindTimedOut}, ""},
		"sleep":                 {"shell", "sleep 100", []sandbox.Kind{sandbox.KindTimedOut}, ""},
		"exit in a child":       {"c", includes + "int main(){if(fork()==0){usleep(300000);puts(\"late\");fflush(stdout);}return 7;}", []sandbox.Kind{sandbox.KindExited}, ""},
		"leave daemons":         {"shell", "for i in 1 2 3 4 5; do setsid sh -c 'trap \"\" 1 2 15; while :; do sleep 1; done' & done; echo left", []sandbox.Kind{sandbox.KindExited}, "left\n"},
		"work for ever in many": {"python", "import os\nfor i in range(3): os.fork()\nwhile True: pass", []sandbox.Kind{sandbox.KindTimedOut}, ""},
		"memory, python":        {"python", "x=[]\nwhile True: x.append(bytearray(1<<20))", []sandbox.Kind{sandbox.KindOOMKilled}, ""},
		"memory, C":             {"c", includes + "int main(){for(;;){char*p=malloc(1<<20);if(p)memset(p,1,1<<20);}}", []sandbox.Kind{sandbox.KindOOMKilled}, ""},
		"memory of many":        {"c", includes + "int main(){for(int i=0;i<8;i++)if(!fork())break;for(;;){char*p=malloc(1<<20);if(p)memset(p,1,1<<20);}}", []sandbox.Kind{sandbox.KindOOMKilled, sandbox.KindTimedOut}, ""},
		"deep recursion":        {"c", includes + "int f(int n){volatile char b[1000];b[0]=n;return n?f(n+1)+b[0]:0;} int main(){return f(1);}", []sandbox.Kind{sandbox.KindSignalled, sandbox.KindOOMKilled}, ""},
		"kill everything":       {"c", includes + "int main(){kill(1,9);kill(-1,9);puts(\"here\");return 0;}", []sandbox.Kind{sandbox.KindExited}, "here\n"},
		"abort":                 {"c", includes + "int main(){abort();}", []sandbox.Kind{sandbox.KindSignalled}, ""},
		"stop oneself":          {"shell", "kill -STOP $$", []sandbox.Kind{sandbox.KindTimedOut}, ""},
		"stdin is not read":     {"shell", "exit 0", []sandbox.Kind{sandbox.KindExited}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.runtime == "c" {
				needsCompiler(t)
			}
			r := script(c.runtime, c.code)
			r.Limits, r.Stdin = small, []byte(strings.Repeat("x", 100_000))
			if slowness > 1 && strings.HasPrefix(name, "memory") { // emulated page faults are slower than all else
				r.Limits.CPU *= 6
				r.Limits.Wall *= 6
			}
			start := time.Now()
			got := call(t, s, r)
			ok := false
			for _, k := range c.want {
				ok = ok || got.Failure.Kind == k
			}
			if !ok || got.Failure.Blame != sandbox.BlameTask || got.Compiling {
				t.Errorf("ended as %v, want %v\nstdout %.300q\nstderr %.300q", got.Failure, c.want, got.Stdout, got.Stderr)
			}
			if !strings.HasPrefix(string(got.Stdout), c.output) || name == "exit in a child" && len(got.Stdout) > 0 {
				t.Errorf("stdout %.100q", got.Stdout)
			}
			t.Logf("%v after %v (cpu %v, memory %d)", got.Failure, time.Since(start), got.CPU, got.Memory)
			if after := call(t, s, script("shell", "echo fine")); string(after.Stdout) != "fine\n" {
				t.Errorf("the next call: %v %q", after.Failure, after.Stderr)
			}
		})
	}
	empty(t, s)
}

// empty wants no process in the slots' groups.
func empty(t *testing.T, s *Service) {
	t.Helper()
	for _, d := range s.groups.dirs() {
		files, err := filepath.Glob(filepath.Join(d, "*", "s*", "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.Contains(f, "/cpu/") {
				continue // the slots' own threads are counted there
			}
			if b, err := os.ReadFile(f); err != nil || len(b) > 0 {
				t.Errorf("%s: processes %q are left (%v)", f, b, err)
			}
		}
	}
}

// leave leaves whatever a program can leave.
const leave = `
import ctypes, mmap, os, signal, socket, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def say(what, v): print(what, "ok" if v >= 0 else os.strerror(ctypes.get_errno()), flush=True)
say("shm", libc.shmget(42, 4096, 0o1666))
say("sem", libc.semget(42, 1, 0o1666))
say("msg", libc.msgget(42, 0o1666))
say("mq", libc.mq_open(b"/remnant", os.O_CREAT | os.O_RDWR, 0o666, None))
for d in ("/tmp", "/var/tmp", "/dev/shm", "/call/work", "."):
    try:
        open(d + "/remnant", "w").write("secret")
    except FileExistsError: pass
for d in ("/usr", "/", "/dev", "/etc", "/run", "/call", "/home", "/root"):
    try: open(d + "/remnant", "w"); print("wrote to", d)
    except OSError: pass
s = socket.socket(socket.AF_UNIX); s.bind("\0remnant"); s.listen()
signal.setitimer(signal.ITIMER_REAL, 0.3)
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    sys.argv[0] = "remnant"
    while True: time.sleep(0.01)
`

// look finds what others have left.
const look = `
import ctypes, os, socket
libc = ctypes.CDLL(None, use_errno=True)
found = []
for f, n in ((libc.shmget, 3), (libc.semget, 3), (libc.msgget, 2)):
    if f(*((42, 0, 0)[:n])) >= 0: found.append(f.__name__)
if libc.mq_open(b"/remnant", os.O_RDONLY) >= 0: found.append("mq")
for d in ("/tmp", "/var/tmp", "/dev/shm", "/call/work", "/call"):
    left = [n for n in os.listdir(d) if n not in ("main.py", "work", "tmp", "shm")]
    if left: found.append((d, left))
s = socket.socket(socket.AF_UNIX)
try: s.connect("\0remnant"); found.append("abstract socket")
except OSError: pass
if "remnant" in open("/proc/net/unix").read() if os.path.exists("/proc/net/unix") else False: found.append("/proc/net/unix")
pids = [p for p in os.listdir("/proc") if p.isdigit()]
if pids != [str(os.getpid())]: found.append(("processes", pids))
if os.getpid() != 2: found.append(("pid", os.getpid()))
fds = os.listdir("/proc/self/fd")
if len(fds) > 5: found.append(("descriptors", fds))
for k, v in os.environ.items():
    if "SECRET" in k or "secret" in v: found.append(("environment", k))
other = [n for n in os.listdir("/proc") if not n.isdigit() and n not in ("self", "thread-self")]
if other: found.append(("proc", other))
if os.path.exists("/sys/kernel"): found.append("sysfs")
print(found, os.getcwd(), os.uname().nodename, sorted(os.listdir("/proc/self/task")) == [str(os.getpid())])
`

// TestNothingIsLeft: no call sees anything of those before it, whichever slot it gets.
func TestNothingIsLeft(t *testing.T) {
	s := newService(t, func(c *Config) { c.Parallel = 1 }) // few slots: each is used again and again
	for range 6 {
		r := script("python", leave)
		r.Env = []string{"SECRET=secret"}
		got := call(t, s, r)
		if got.ExitCode != 0 || strings.Contains(string(got.Stdout), "wrote") || strings.Count(string(got.Stdout), " ok") != 4 {
			t.Fatalf("leaving things: %v\n%s%s", got.Failure, got.Stdout, got.Stderr)
		}
		got = call(t, s, script("python", look))
		if string(got.Stdout) != "[] /call/work call True\n" {
			t.Fatalf("the next call sees %s%s", got.Stdout, got.Stderr)
		}
	}
	empty(t, s)
}

// TestAtOnce: calls that run at the same time do not see each other either.
func TestAtOnce(t *testing.T) {
	s := newService(t, func(c *Config) { c.Parallel = 2 })
	done := make(chan *Result)
	go func() {
		r := script("python", leave+"\ntime.sleep(1)")
		out, err := s.Call(context.Background(), "a", r)
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		got := call(t, s, script("python", look))
		if string(got.Stdout) != "[] /call/work call True\n" {
			t.Fatalf("a neighbour sees %s%s", got.Stdout, got.Stderr)
		}
	}
}

// break out tries what must fail, and prints what did not.
const breakOut = includes + `
#include <errno.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#define MUST_FAIL(what, call) do { errno = 0; if ((long)(call) >= 0) printf("%s works\n", what); } while (0)
int main(int argc, char **argv) {
	MUST_FAIL("mount", mount("none", "/call/tmp", "tmpfs", 0, ""));
	MUST_FAIL("umount", umount2("/proc", MNT_DETACH));
	MUST_FAIL("remount", mount("", "/", "", MS_REMOUNT | MS_BIND, ""));
	MUST_FAIL("unshare user", unshare(CLONE_NEWUSER));
	MUST_FAIL("unshare net", unshare(CLONE_NEWNET));
	MUST_FAIL("setns", setns(open("/proc/1/ns/mnt", O_RDONLY), 0));
	MUST_FAIL("chroot", chroot("/call/tmp"));
	MUST_FAIL("setuid", setuid(0));
	MUST_FAIL("setgid", setgid(0));
	MUST_FAIL("mknod", mknod("/call/tmp/disk", S_IFBLK | 0600, makedev(254, 0)));
	MUST_FAIL("sethostname", sethostname("x", 1));
	MUST_FAIL("ptrace the first process", ptrace(PTRACE_ATTACH, 1, 0, 0));
	MUST_FAIL("open its memory", open("/proc/1/mem", O_RDONLY));
	MUST_FAIL("open its descriptors", open("/proc/1/fd", O_RDONLY));
	MUST_FAIL("kill it", kill(1, SIGKILL));
	MUST_FAIL("inet socket", socket(AF_INET, SOCK_STREAM, 0));
	MUST_FAIL("inet6 socket", socket(AF_INET6, SOCK_DGRAM, 0));
	MUST_FAIL("netlink socket", socket(AF_NETLINK, SOCK_RAW, 0));
	MUST_FAIL("packet socket", socket(AF_PACKET, SOCK_RAW, 0));
	MUST_FAIL("vsock", socket(40, SOCK_STREAM, 0));
	MUST_FAIL("bpf", syscall(SYS_bpf, 0, 0, 0));
	MUST_FAIL("io_uring", syscall(SYS_io_uring_setup, 1, 0));
	MUST_FAIL("userfaultfd", syscall(SYS_userfaultfd, 0));
	MUST_FAIL("keyctl", syscall(SYS_keyctl, 0, -3, 1));
	MUST_FAIL("add_key", syscall(SYS_add_key, "user", "k", "v", 1, -4));
	MUST_FAIL("perf", syscall(SYS_perf_event_open, 0, 0, -1, -1, 0));
	MUST_FAIL("write its own program", open("/proc/self/exe", O_WRONLY));
	MUST_FAIL("write a program of the base", open("/bin/sh", O_WRONLY));
	MUST_FAIL("read shadow", open("/etc/shadow", O_RDONLY));
	MUST_FAIL("sysctl", open("/proc/sys/kernel/hostname", O_RDONLY));
	MUST_FAIL("kcore", open("/proc/kcore", O_RDONLY));
	MUST_FAIL("a terminal", open("/dev/tty", O_RDWR));
	MUST_FAIL("a new terminal", open("/dev/ptmx", O_RDWR));
	MUST_FAIL("watch what neighbours open", inotify_add_watch(inotify_init1(IN_CLOEXEC), "/usr/bin", IN_ALL_EVENTS));
	MUST_FAIL("watch it by signal", fcntl(open("/usr/bin", O_RDONLY | O_CLOEXEC), F_NOTIFY, DN_ACCESS));
	close(3); close(4);
	MUST_FAIL("a wider priority", setpriority(PRIO_PROCESS, 0, -5));
	struct rlimit l;
	for (int n = 0; n < 16; n++) {
		getrlimit(n, &l);
		if (l.rlim_max == RLIM_INFINITY) continue;
		l.rlim_cur = l.rlim_max = RLIM_INFINITY;
		MUST_FAIL("a higher limit", setrlimit(n, &l));
	}
	getrlimit(RLIMIT_CORE, &l);
	if (l.rlim_cur || l.rlim_max) puts("core dumps are on, or can be");
	if (getuid() == 0 || geteuid() == 0 || getgid() == 0 || getgroups(0, 0) > 0) puts("it is somebody");
	char path[4096], line[4096];
	FILE *f = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, f))
		if ((!strncmp(line, "Cap", 3) && strcmp(line, "CapBnd") && strncmp(line, "CapBnd", 6) && strtoull(strchr(line, '\t'), 0, 16)) ||
		    !strcmp(line, "NoNewPrivs:\t0\n") || !strcmp(line, "Seccomp:\t0\n")) fputs(line, stdout);
	fclose(f);
	ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
	if (n > 0) { path[n] = 0; MUST_FAIL("its program by path", open(path, O_RDWR)); MUST_FAIL("to unlink it", unlink(path)); MUST_FAIL("to chmod it", chmod("/proc/self/exe", 0777)); }
	for (int fd = 3; fd < 1024; fd++) MUST_FAIL("a descriptor that was left open", fcntl(fd, F_GETFD));
	puts("done");
	return 0;
}`

func TestBreakOut(t *testing.T) {
	needsCompiler(t)
	s := newService(t)
	for range 2 {
		got := call(t, s, script("c", breakOut))
		if string(got.Stdout) != "done\n" || got.ExitCode != 0 {
			t.Errorf("%v\n%s%s", got.Failure, got.Stdout, got.Stderr)
		}
	}
}

// TestCompilerBombs: compiling runs as a call, with limits of its own.
func TestCompilerBombs(t *testing.T) {
	needsCompiler(t)
	s := newService(t)
	limits := Limits{CPU: time.Second, Wall: 3 * time.Second, Memory: 256 << 20}
	for name, c := range map[string]struct {
		code string
		want sandbox.Kind
	}{
		"endless include":  {"#include \"/dev/zero\"\nint main(){}", ""},
		"recursive":        {"#include \"main.c\"\nint main(){}", ""},
		"secret":           {"#include \"/etc/shadow\"\nint main(){}", sandbox.KindExited},
		"other artifacts":  {"#include \"/var/tmp\"\nint main(){}", sandbox.KindExited},
		"large":            {"char x[4000000000] = {1};\nint main(){}", ""},
		"not a program":    {"this is no C", sandbox.KindExited},
		"many expansions ": {"#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(x))))\n#define C(x) B(B(x))\nint main(){int y=0; C(y++;) return 0;}", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := script("c", c.code)
			r.Compile = limits
			got := call(t, s, r)
			if !got.Compiling || got.Failure.Blame == sandbox.BlameInfra || got.Passed() || c.want != "" && got.Failure.Kind != c.want {
				t.Errorf("%v, compiling %v: %.300s", got.Failure, got.Compiling, got.Stderr)
			}
			if strings.Contains(string(got.Stderr), "root:") {
				t.Errorf("it read the base's secrets: %s", got.Stderr)
			}
			t.Logf("%v", got.Failure)
		})
	}
	empty(t, s)
}

// TestCancelled: who gives up ends the call.
func TestCancelled(t *testing.T) {
	s := newService(t)
	call(t, s, script("shell", "true"))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	var got *Result
	go func() {
		r := script("shell", "sleep 1000")
		r.Limits = Limits{Wall: 10 * time.Minute}
		var err error
		got, err = s.Call(ctx, "a", r)
		ended <- err
	}()
	for s.state0(t, "shell").users == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil && !errors.Is(err, context.Canceled) || err == nil && got.Failure.Kind != sandbox.KindKilled {
		t.Fatalf("%v, %v", got, err)
	}
	empty(t, s)
}

// state0 is a look at a runtime's state.
func (s *Service) state0(t *testing.T, name string) struct{ users, pid int } {
	t.Helper()
	r, err := s.state(name)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := struct{ users, pid int }{users: r.users}
	if r.worker != nil {
		out.pid = r.worker.cmd.Process.Pid
	}
	return out
}

// TestWorkerKilled: a worker that is killed takes its calls along, and they are run again.
func TestWorkerKilled(t *testing.T) {
	s := newService(t)
	call(t, s, script("shell", "true"))
	const n = 8
	results := make(chan string, n)
	for k := range n {
		go func() {
			r := script("shell", fmt.Sprintf("sleep 0.3; echo %d", k))
			out, err := s.Call(context.Background(), "a", r)
			if err != nil {
				results <- err.Error()
				return
			}
			results <- strings.TrimSpace(string(out.Stdout)) + out.Failure.Message
		}()
	}
	for s.state0(t, "shell").users == 0 {
		time.Sleep(time.Millisecond)
	}
	p, err := os.FindProcess(s.state0(t, "shell").pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for range n {
		seen[<-results] = true
	}
	for k := range n {
		if !seen[fmt.Sprintf("%dexited with 0", k)] {
			t.Errorf("call %d has no result: %v", k, seen)
		}
	}
	empty(t, s)
}
