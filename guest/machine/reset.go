package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
)

// resetWait bounds a reset.
const resetWait = 20 * time.Second

// start starts a dsec-init, which is the machine's from here on.
func (c *controller) start() (*exec.Cmd, error) {
	start := startInit
	if c.system {
		start = startSystem
	}
	cmd, err := start()
	if err != nil {
		return nil, fmt.Errorf("start dsec-init: %w", err)
	}
	c.initMu.Lock()
	c.init = cmd.Process
	c.initMu.Unlock()
	return cmd, nil
}

// replace ends dsec-init, with all that runs below it, and waits until there is another.
func (c *controller) replace() error {
	done := make(chan error, 1)
	c.initMu.Lock()
	c.reset = done
	err := c.init.Kill()
	c.initMu.Unlock()
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-time.After(resetWait):
		return errors.New("dsec-init does not end")
	}
}

func (c *controller) takeReset() chan error {
	c.initMu.Lock()
	defer c.initMu.Unlock()
	done := c.reset
	c.reset = nil
	return done
}

// clean takes away what a preparation made, once dsec-init has ended.
func (c *controller) clean() error {
	c.bridge.setRoot(nil)
	if err := c.bridge.groups.clear(); err != nil {
		return err
	}
	p := c.prepared
	c.prepared = nil
	if p == nil {
		return nil
	}
	dirs := []string{"/root", "/disk"}
	disks := []string{p.Disk}
	for i, l := range p.Layers {
		if l.Memory != nil {
			return errors.New("a machine whose layers are in its memory cannot be reset")
		}
		dirs = append(dirs, "/layers/"+strconv.Itoa(i))
		disks = append(disks, l.Meta)
		if l.Data != "" {
			disks = append(disks, l.Data)
		}
	}
	for _, d := range dirs {
		if err := unix.Unmount(d, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("unmount %s: %w", d, err)
		}
	}
	for i := range p.Layers {
		if err := os.Remove("/layers/" + strconv.Itoa(i)); err != nil {
			return err
		}
	}
	// A file system ends some time after its last mount. Another one mounted from the same disk before that would be the old
	// one again.
	for _, serial := range disks {
		dev, err := device(serial)
		if err != nil {
			return err
		}
		err = await("end of the file system on "+serial, func() bool {
			fd, err := unix.Open(dev, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
			if err != nil {
				return false
			}
			unix.Close(fd)
			return true
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// RehearsePath is where the image that machines rehearse with has dsec-init, and Rehearse its argument.
const (
	RehearsePath = "/bin/rehearse"
	Rehearse     = "rehearse"
)

// RehearseMain does what programs do at first, for what the kernel and the emulator make of it once only: it starts a
// program, reads and writes files.
func RehearseMain(args []string) {
	if len(args) > 0 {
		os.Exit(0)
	}
	_, _ = exec.Command("/proc/self/exe", Rehearse, "again").CombinedOutput()
	_, _ = os.ReadDir("/")
	_ = os.WriteFile("/rehearsal", []byte(control.PortName), 0o644)
	_, _ = os.ReadFile("/rehearsal")
	_, _ = os.Stdout.WriteString("rehearsed\n")
	os.Exit(0)
}
