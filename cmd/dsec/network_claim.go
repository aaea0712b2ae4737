package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/opendsec/dsec/backend/container"
	"github.com/opendsec/dsec/backend/fullvm"
	"github.com/opendsec/dsec/backend/microvm"
	"github.com/opendsec/dsec/policy/network/link"
	netnode "github.com/opendsec/dsec/policy/network/node"
	"github.com/opendsec/dsec/sandbox"
)

// A host has one network for sandboxes: the kernel gives the uplink's name to the first that asks. It is the owner's until
// its `dsec down`. One that was killed is dead when no process of it runs and no sandbox of it has a link: then whoever
// wants a network takes away what it left.

// claimNetwork opens the network. Error: sandbox.ErrAlreadyExists, with whose it is.
func claimNetwork(d stateDir, log *slog.Logger, open func() (*netnode.Network, error)) (*netnode.Network, error) {
	var last error
	for range 3 { // others may claim too, or let go
		n, err := open()
		if !errors.Is(err, sandbox.ErrAlreadyExists) {
			return n, err
		}
		last = fmt.Errorf("%w: whose it is cannot be seen from here", err)
		owners, oerr := networkOwners(d)
		if oerr != nil {
			return nil, errors.Join(err, oerr)
		}
		for _, o := range owners {
			alive, ferr := o.freeNetwork(log)
			if ferr != nil {
				return nil, errors.Join(err, ferr)
			}
			if alive != "" {
				return nil, fmt.Errorf("%w: it is that of the node on %s, %s", err, o, alive)
			}
		}
	}
	return nil, last
}

// networkOwners are the other state directories that a network of this host belongs to.
func networkOwners(d stateDir) ([]stateDir, error) {
	routers, err := link.Routers()
	if err != nil {
		return nil, err
	}
	var out []stateDir
	for _, dir := range routers {
		o := stateDir(filepath.Dir(filepath.Dir(dir)))
		if networkDir(o) == dir && o != d {
			out = append(out, o)
		}
	}
	return out, nil
}

// freeNetwork takes away the network of a node that is dead, or says why it is not.
func (d stateDir) freeNetwork(log *slog.Logger) (alive string, err error) {
	if pid := holder(d.path("lock")); pid != 0 {
		return fmt.Sprintf("which runs (process %d)", pid), nil
	}
	// With the lock of its edge none can begin to serve until this is done. It tells nobody's pid: who ends what an earlier
	// node left must not take this process for that.
	lock, err := os.OpenFile(d.path("run", "edge.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return "whose edge runs", nil
	}
	if err := lock.Truncate(0); err != nil {
		return "", err
	}
	boxes, err := networked(d)
	if err != nil {
		return "", fmt.Errorf("sandboxes of %s: %w", d, err)
	}
	if len(boxes) > 0 {
		return fmt.Sprintf("which has ended, but not %d of its sandboxes with a network (`dsec down --state %s` ends them)", len(boxes), d), nil
	}
	log.Info("takes away the network that a node left which was killed", "state", d)
	if err := netnode.Remove(networkDir(d)); err != nil {
		return "", fmt.Errorf("take away the network of the dead node on %s: %w", d, err)
	}
	return "", nil
}

// networked are the node's sandboxes with a link that run, whether or not it does. Shells that nobody has asked for are none.
func networked(d stateDir) ([]sandbox.ID, error) {
	ids, err := container.Linked(string(d))
	for _, of := range []func(string) ([]sandbox.ID, error){microvm.Linked, fullvm.Linked} {
		machines, merr := of(string(d))
		ids, err = append(ids, machines...), errors.Join(err, merr)
	}
	return slices.DeleteFunc(ids, func(id sandbox.ID) bool {
		_, err := os.Stat(d.path("edge", "sandboxes", string(id)))
		return errors.Is(err, os.ErrNotExist)
	}), err
}

// removeNetwork takes away what is left of a network that the node does not have any more.
func removeNetwork(d stateDir, log *slog.Logger) {
	if err := netnode.Remove(networkDir(d)); err != nil {
		log.Warn("remove what is left of a network", "dir", networkDir(d), "err", err)
	}
}
