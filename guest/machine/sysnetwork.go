package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/linux"
)

// interfaceWait bounds how long a whole system that boots may take to find its interface.
const interfaceWait = 15 * time.Second

// resolvConfPath is where programs look for who answers questions for names.
const resolvConfPath = "/etc/resolv.conf"

// plugSystem sets up a whole system's interface as the node wants it, whoever else in the system thinks that it does so. Who
// answers questions for names is written in the place of what the system has, for nobody else can be asked.
func plugSystem(n *control.Network) error {
	if n == nil {
		return nil
	}
	index, err := awaitInterface()
	if err != nil {
		return err
	}
	r, err := linux.OpenRoute()
	if err != nil {
		return err
	}
	defer r.Close()
	reqs := append([]linux.Request{linux.ChangeLink(index, n.End.MAC, n.End.MTU, nil)}, n.End.Requests(index)...)
	if err := r.Apply(reqs...); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	// A link leads to the file of a resolver of the system's own.
	if err := os.Remove(resolvConfPath); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(resolvConfPath, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(resolvConf(n))
	return errors.Join(err, f.Close())
}

// replugSystem gives the interface of a system that goes on in another machine the place that this one has in the node's
// network.
func (c *controller) replugSystem(n *control.Network) error {
	old := c.prepared.Network
	if old == nil {
		return plugSystem(n)
	}
	index, err := awaitInterface()
	if err != nil {
		return err
	}
	r, err := linux.OpenRoute()
	if err != nil {
		return err
	}
	defer r.Close()
	// The kernel forgets the routes with the last address.
	reqs := []linux.Request{linux.RemoveAddress(index, old.End.Address4), linux.RemoveAddress(index, old.End.Address6)}
	if n != nil {
		reqs = append(append(reqs, linux.ChangeLink(index, n.End.MAC, n.End.MTU, nil)), n.End.Requests(index)...)
	}
	if err := r.Apply(reqs...); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// awaitInterface finds the machine's interface once its driver is there, and returns its index. It is told by its driver: what it is
// called is the system's affair, its hardware address changes with the machine that the system goes on in, and a bridge above it
// may have the same.
func awaitInterface() (int, error) {
	end := time.Now().Add(interfaceWait)
	for {
		if index, err := virtioInterface("/sys/class/net"); err == nil {
			return index, nil
		}
		if time.Now().After(end) {
			return 0, errors.New("network: the system has found no interface: its kernel needs the driver virtio_net")
		}
		time.Sleep(50 * time.Millisecond) // the kernel tells udev, which not every system has
	}
}

// virtioInterface is the index of the interface with that driver, of those that the directory has.
func virtioInterface(dir string) (int, error) {
	all, err := filepath.Glob(filepath.Join(dir, "*", "device", "driver"))
	if err != nil {
		return 0, err
	}
	for _, path := range all {
		if driver, err := os.Readlink(path); err != nil || filepath.Base(driver) != "virtio_net" {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "ifindex")); err == nil {
			return strconv.Atoi(strings.TrimSpace(string(b)))
		}
	}
	return 0, os.ErrNotExist
}
