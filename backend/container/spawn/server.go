package spawn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/guest/nursery"
	"github.com/opendsec/dsec/internal/linux"
)

// Request asks for one shell. It travels as "id uidBase args..." with the files behind it.
type Request struct {
	ID      string
	UIDBase uint32     // first host id of the shell's 65,536
	Cgroup  *os.File   // v2 group the process starts in
	Log     *os.File   // its stderr
	Listen  *os.File   // descriptor 3: its listening socket
	Files   []*os.File // descriptors 4, 5, ...
	Args    []string   // after "container"; no spaces
}

// IDRange is how many ids each shell's user namespace maps.
const IDRange = 65536

// cloneFlags: dsec-init makes its control-group namespace itself, once it is in the group that is to be its root.
const cloneFlags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET |
	syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

// oomScore is what dsec-init starts with and every command inherits: where the whole machine runs out of memory, the
// kernel takes sandboxes before the platform's own processes. Set by a process with CAP_SYS_RESOURCE, it cannot be
// lowered inside; without, not below the platform's own 0.
const oomScore = "500"

// server is what the spawner keeps.
type server struct {
	cloner *nursery.Cloner
	null   *os.File
	env    []string
}

// newServer prepares this process for cloning.
func newServer(initEnv []string) (*server, error) {
	// The cloning thread inherits the mounts of this one. That other goroutines run here later does not matter: all that
	// they open is in /proc.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	if err := linux.BareRoot(); err != nil {
		return nil, err
	}
	c, err := nursery.NewCloner(int(exe.Fd()))
	if err != nil {
		return nil, err
	}
	return &server{cloner: c, null: null, env: initEnv}, exe.Close()
}

// Serve answers requests on the socket at descriptor fd until the other side closes it.
func Serve(fd int, initEnv []string) error {
	f := os.NewFile(uintptr(fd), "edge")
	c, err := net.FileConn(f)
	f.Close()
	if err != nil {
		return fmt.Errorf("spawner socket: %w", err)
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return errors.New("spawner socket is not a Unix socket")
	}
	go reap()
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // the edge decides when we end
	srv, err := newServer(initEnv)
	if err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	buf := make([]byte, 4096)
	for {
		n, files, err := linux.ReceiveFiles(conn, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive request: %w", err)
		}
		pid, pidfd, err := srv.start(string(buf[:n]), files)
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			err = linux.SendFiles(conn, []byte("err "+err.Error()))
		} else {
			err = linux.SendFiles(conn, []byte("ok "+strconv.Itoa(pid)), pidfd)
			pidfd.Close()
		}
		if err != nil {
			return fmt.Errorf("answer: %w", err)
		}
	}
}

func (s *server) start(msg string, files []*os.File) (int, *os.File, error) {
	f := strings.Split(msg, " ")
	if len(f) < 2 || len(files) < 3 {
		return 0, nil, fmt.Errorf("bad request with %d files", len(files))
	}
	base, err := strconv.ParseUint(f[1], 10, 32)
	if err != nil {
		return 0, nil, err
	}
	fds := []int{int(s.null.Fd()), int(s.null.Fd())}
	for _, x := range files[1:] {
		fds = append(fds, int(x.Fd()))
	}
	pid, pidfd, err := s.cloner.Make(&nursery.Process{
		Namespaces: cloneFlags, Owner: uint32(base), IDs: IDRange, Cgroup: int(files[0].Fd()), Files: fds,
		Argv: append([]string{"dsec-init", "container"}, f[2:]...), Env: s.env,
	})
	if err != nil {
		return 0, nil, fmt.Errorf("clone %s: %w", f[0], err)
	}
	child := os.NewFile(uintptr(pidfd), "pidfd")
	if err := linux.WritePlain("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", oomScore); err != nil {
		_ = linux.SignalPID(child, int(syscall.SIGKILL))
		child.Close()
		return 0, nil, fmt.Errorf("let %s be killed before the node: %w", f[0], err)
	}
	return pid, child, nil
}

// reap collects ended children; who wants to know holds their pidfds.
func reap() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	for {
		for {
			pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if err == syscall.EINTR {
				continue
			}
			if pid <= 0 {
				break
			}
		}
		<-ch
	}
}

// Main is the spawner process: it serves the socket at descriptor fd and does not return.
func Main(fd int, initEnv []string) {
	if err := Serve(fd, initEnv); err != nil {
		fmt.Fprintln(os.Stderr, "dsec-init spawner:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
