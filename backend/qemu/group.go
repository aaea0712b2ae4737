package qemu

import (
	"context"
	"errors"
	"os"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/sandbox"
)

// Group is the control group of a command, inside the machine: its first program makes it when the command starts. It
// implements sandbox.Group.
type Group struct {
	Name string
	// Ask sends a request to the machine.
	Ask func(ctx context.Context, q *control.Request) (*control.Reply, error)
}

// Open finds the group. Like all that asks the machine it takes a moment. Error: sandbox.ErrNotFound.
func (g *Group) Open() error {
	_, err := g.look()
	return err
}

func (g *Group) look() (*control.Group, error) {
	r, err := g.ask(&control.Request{Op: control.OpGroup})
	if err != nil {
		return nil, err
	}
	if r.Group == nil {
		return nil, errors.New("the machine tells nothing of a control group")
	}
	return r.Group, nil
}

func (g *Group) ask(q *control.Request) (*control.Reply, error) {
	q.Group = g.Name
	return g.Ask(context.Background(), q)
}

// Files are none: those that dsec-init wants are of the machine, which adds them.
func (g *Group) Files() []*os.File { return nil }

// CloseFiles has nothing to close.
func (g *Group) CloseFiles() {}

// Kill ends every process of the tree.
func (g *Group) Kill() error { return g.Signal(9) }

// Signal sends a signal to every process of the tree.
func (g *Group) Signal(sig int) error {
	_, err := g.ask(&control.Request{Op: control.OpKill, Signal: sig})
	return err
}

// Empty tells whether no process is left.
func (g *Group) Empty() (bool, error) {
	l, err := g.look()
	if errors.Is(err, sandbox.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return l.Empty, nil
}

// OOMKills counts memory kills since the group was made.
func (g *Group) OOMKills() (int64, error) {
	l, err := g.look()
	if err != nil {
		return 0, err
	}
	return l.OOMKills, nil
}

// Remove kills what is left and removes the group.
func (g *Group) Remove() error {
	_, err := g.ask(&control.Request{Op: control.OpRemove})
	if errors.Is(err, sandbox.ErrUnavailable) {
		return nil // gone with the machine
	}
	return err
}
