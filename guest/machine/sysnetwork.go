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
	index, err := interfaceOf(n.End.MAC, n.Hardware)
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
	index, err := interfaceOf(old.End.MAC, old.Hardware)
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

// interfaceOf finds the interface that has one of two hardware addresses, whatever the system calls it, once its driver is
// there.
func interfaceOf(mac, hardware [6]byte) (int, error) {
	end := time.Now().Add(interfaceWait)
	for {
		all, err := filepath.Glob("/sys/class/net/*/address")
		if err != nil {
			return 0, err
		}
		for _, path := range all {
			b, err := os.ReadFile(path)
			if err != nil {
				continue
			}
			if has := strings.TrimSpace(string(b)); has != macText(mac) && has != macText(hardware) || has == macText([6]byte{}) {
				continue // the last is that of lo
			}
			if b, err = os.ReadFile(filepath.Join(filepath.Dir(path), "ifindex")); err == nil {
				return strconv.Atoi(strings.TrimSpace(string(b)))
			}
		}
		if time.Now().After(end) {
			return 0, fmt.Errorf("network: %w: the system has found no interface with the address %s: its kernel needs the driver virtio_net", os.ErrNotExist, macText(mac))
		}
		time.Sleep(50 * time.Millisecond) // the kernel tells udev, which not every system has
	}
}

// macText is a hardware address in text.
func macText(a [6]byte) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3], a[4], a[5])
}
