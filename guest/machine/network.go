package machine

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/internal/linux"
)

// interfaceName is what the kernel calls the machine's only interface, and what sandboxes of all kinds call theirs.
const interfaceName = "eth0"

// plug gives dsec-init's network namespace the machine's interface, as the node wants it. Where n is nil it stays where
// it is, down, and out of the sandbox's reach.
func (c *controller) plug(n *control.Network) error {
	if n == nil {
		return nil
	}
	return c.beside(func(_, space *os.File) error { return plugThread(&n.End, space) })
}

// replug gives the interface of a sandbox that goes on in another machine the place that this one has in the node's network.
// Moving it to and fro takes away the addresses and routes that it had.
func (c *controller) replug(n *control.Network) error {
	if old := c.prepared.Network; old != nil {
		err := c.beside(func(home, space *os.File) error {
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
				return err
			}
			return withInterface(func(r *linux.Route, index int) error {
				return r.Apply(linux.ChangeLink(index, old.End.MAC, 0, home))
			})
		})
		if err != nil {
			return err
		}
	}
	return c.plug(n)
}

// beside runs f on a thread of its own, which it may leave in another network namespace: home is the machine's, space
// dsec-init's.
func (c *controller) beside(f func(home, space *os.File) error) error {
	c.initMu.Lock()
	pid := c.init.Pid
	c.initMu.Unlock()
	space, err := os.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return err
	}
	defer space.Close()
	// A thread that cannot come back is not used again.
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer home.Close()
	err = f(home, space)
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

// plugThread leaves the calling thread in the namespace.
func plugThread(end *linux.LinkEnd, space *os.File) error {
	err := withInterface(func(r *linux.Route, index int) error {
		return r.Apply(linux.ChangeLink(index, end.MAC, end.MTU, space))
	})
	if err != nil {
		return err
	}
	if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	return withInterface(func(r *linux.Route, index int) error { return r.Apply(end.Requests(index)...) })
}

func withInterface(f func(r *linux.Route, index int) error) error {
	index, err := linux.LinkIndex(interfaceName)
	if err != nil {
		return err
	}
	r, err := linux.OpenRoute()
	if err != nil {
		return err
	}
	defer r.Close()
	return f(r, index)
}

// resolvConf is /etc/resolv.conf.
func resolvConf(n *control.Network) string {
	if n == nil {
		return "# This sandbox has loopback only.\noptions timeout:1 attempts:1\n"
	}
	var b strings.Builder
	for _, a := range n.Resolvers {
		b.WriteString("nameserver " + a.String() + "\n")
	}
	return b.String() + "options timeout:3 attempts:2\n"
}
