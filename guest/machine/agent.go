package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/initd"
	"github.com/opendsec/dsec/guest/machine/control"
)

// Where an agent keeps what it needs while it runs.
const (
	agentDir    = "/run/dsec"
	agentSocket = agentDir + "/channel"
)

// AgentMain is a service of the system of a full virtual machine: `dsec-init agent`. It does not return. It ends when
// dsec-init does, for whatever starts services to start it again.
func AgentMain() {
	err := agent()
	fmt.Fprintf(os.Stderr, "dsec-agent: %v\n", err)
	os.Exit(1)
}

func agent() error {
	if os.Geteuid() != 0 {
		return errors.New("it has to run as root")
	}
	if err := os.MkdirAll(agentDir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(agentDir+"/lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.New("another one runs")
	}
	// Commands run without groups of their own where there are none.
	if err := agentGroups(); err != nil {
		fmt.Fprintf(os.Stderr, "dsec-agent: no control groups: %v\n", err)
		initGroup, workGroup = agentDir+"/none/init", agentDir+"/none/work"
	}
	ctl, err := openPort(control.PortName)
	if err != nil {
		return fmt.Errorf("%w: this is no full VM of a DSec node, or its kernel lacks virtio_console", err)
	}
	data, err := openPort(control.Channel)
	if err != nil {
		return err
	}
	b := newBridge(data, agentSocket)
	c := &controller{port: ctl, bridge: b, system: true}
	b.closed = c.connectionClosed
	err = c.run()
	c.send(&control.Reply{Event: control.EventEnded})
	return fmt.Errorf("dsec-init ended: %v", err)
}

// agentGroups makes the groups below the one that this service was started in, which is its own to divide (systemd:
// Delegate=yes), or in the tree's root where nobody manages it.
func agentGroups() error {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	own, found := "", false
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "0::"); ok {
			own, found = strings.TrimSpace(rest), true
		}
	}
	if !found {
		return errors.New("the kernel has no cgroup v2")
	}
	root, err := cgroupMount()
	if err != nil {
		return err
	}
	base := filepath.Join(root, own)
	if own == "/" {
		base = filepath.Join(root, "dsec")
		_ = os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+memory +pids"), 0)
		if err := os.Mkdir(base, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
	}
	initGroup, workGroup = base+"/init", base+"/work"
	for _, d := range []string{initGroup, workGroup} {
		if err := os.Mkdir(d, 0o755); err != nil && !os.IsExist(err) {
			return err
		}
	}
	// Groups with processes cannot have divided ones beside them: this service leaves its own.
	if err := os.WriteFile(initGroup+"/cgroup.procs", []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	if err := os.WriteFile(base+"/cgroup.subtree_control", []byte("+memory +pids"), 0); err != nil {
		return err
	}
	// A predecessor's commands go: nobody knows of them any more.
	var g groups
	return g.clear()
}

// cgroupMount finds the v2 tree, or mounts it.
func cgroupMount() (string, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		// ... root mountpoint options ... - type source
		before, after, ok := strings.Cut(line, " - ")
		if f := strings.Fields(before); ok && strings.HasPrefix(after, "cgroup2 ") && len(f) > 4 && f[3] == "/" {
			return f[4], nil
		}
	}
	dir := agentDir + "/cgroup"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return dir, unix.Mount("cgroup2", dir, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// startSystem starts dsec-init in the system as it is.
func startSystem() (*exec.Cmd, error) {
	listen, err := listenAt(agentSocket)
	if err != nil {
		return nil, err
	}
	defer listen.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"dsec-init", "system"}
	cmd.Env = initd.Environ()
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{listen}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, cmd.Start()
}

// reserved is what commands leave to the rest of the system, at least, and as a part of its memory.
const (
	reserved     = 48 << 20
	reservedPart = 16
)

// prepareSystem makes a system that has just booted one of its own: randomness, time, a name, its place in the node's network, and
// bounds for commands, so that one that takes all memory is killed before what the system needs is.
func prepareSystem(p *control.Prepare, g *groups) error {
	if err := errors.Join(reseed(p.Seed), setClock(p.Time), nameSystem(p.Hostname), plugSystem(p.Network)); err != nil {
		return err
	}
	if _, err := os.Stat(workGroup); err != nil {
		return nil
	}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return err
	}
	total := int64(si.Totalram) * int64(si.Unit)
	return g.limit(total-max(reserved, total/reservedPart), p.Pids)
}
