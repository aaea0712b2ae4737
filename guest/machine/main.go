package machine

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/initd"
	"github.com/opendsec/dsec/guest/machine/control"
)

// Said begins each line of this program on the console; Ended the one after which the machine ends.
const (
	Said  = "dsec-machine: "
	Ended = Said + "dsec-init ended"
)

// socketPath is where dsec-init listens.
const socketPath = "/run/channel"

// Main is the first program of a machine and does not return.
func Main() {
	err := run()
	fmt.Fprintf(os.Stderr, "%s: %v\n", Ended, err)
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	os.Exit(1) // a panic, which restarts as well
}

func run() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("not the first process of a machine")
	}
	if err := mountAll(); err != nil {
		return err
	}
	quietTimer()
	if err := loadModules(); err != nil {
		return err
	}
	if err := makeGroups(); err != nil {
		return err
	}
	ctl, err := openPort(control.PortName)
	if err != nil {
		return err
	}
	data, err := openPort(control.Channel)
	if err != nil {
		return err
	}
	b := newBridge(data, socketPath)
	c := &controller{port: ctl, bridge: b}
	b.closed = c.connectionClosed
	return c.run()
}

// run serves until dsec-init ends.
func (c *controller) run() error {
	cmd, err := c.start()
	if err != nil {
		return err
	}
	go c.bridge.serve()
	go c.serve()
	for {
		err := cmd.Wait()
		done := c.takeReset()
		if done == nil {
			return err
		}
		if err = c.clean(); err == nil {
			cmd, err = c.start()
		}
		done <- err
		if err != nil {
			return err
		}
	}
}

// startInit starts dsec-init as spawners do for containers, but for a user namespace: root in a sandbox is root of its
// machine, without the capabilities that dsec-init takes away.
func startInit() (*exec.Cmd, error) {
	listen, err := listenAt(socketPath)
	if err != nil {
		return nil, err
	}
	defer listen.Close()
	leave, err := os.OpenFile(initGroup+"/cgroup.procs", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	defer leave.Close()
	work, err := os.Open(workGroup)
	if err != nil {
		return nil, err
	}
	defer work.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"dsec-init", "container", "-stage", "/tmp", "-group", "4"}
	cmd.Env = initd.Environ()
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{listen, leave}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// The network namespace has loopback only, until the machine's interface is moved there.
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
		Setsid:     true, UseCgroupFD: true, CgroupFD: int(work.Fd()),
	}
	return cmd, cmd.Start()
}

// listenAt makes the socket that a dsec-init listens on.
func listenAt(path string) (*os.File, error) {
	_ = os.Remove(path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "listen")
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = unix.Listen(fd, 16)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
