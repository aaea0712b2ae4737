package microvm

import (
	"context"
	"errors"
	"os"

	"github.com/opendsec/dsec/guest/machine/control"
	"github.com/opendsec/dsec/sandbox"
)

// group is the control group of a command, inside the machine: its first program makes it when the command starts.
type group struct {
	i    *instance
	name string
}

// Group names a command's control group.
func (i *instance) Group(_ context.Context, command string) (sandbox.Group, error) {
	return &group{i, command}, nil
}

// OpenGroup finds a command's control group. Like all that asks the machine it takes a moment.
func (i *instance) OpenGroup(command string) (sandbox.Group, error) {
	g := &group{i, command}
	if _, err := g.look(); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *group) look() (*control.Group, error) {
	r, err := g.ask(&control.Request{Op: control.OpGroup})
	if err != nil {
		return nil, err
	}
	if r.Group == nil {
		return nil, errors.New("the machine tells nothing of a control group")
	}
	return r.Group, nil
}

func (g *group) ask(q *control.Request) (*control.Reply, error) {
	q.Group = g.name
	return g.i.ask(context.Background(), q)
}

// Files are none: those that dsec-init wants are of the machine, which adds them.
func (g *group) Files() []*os.File { return nil }

// CloseFiles has nothing to close.
func (g *group) CloseFiles() {}

// Kill ends every process of the tree.
func (g *group) Kill() error { return g.Signal(9) }

// Signal sends a signal to every process of the tree.
func (g *group) Signal(sig int) error {
	_, err := g.ask(&control.Request{Op: control.OpKill, Signal: sig})
	return err
}

// Empty tells whether no process is left.
func (g *group) Empty() (bool, error) {
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
func (g *group) OOMKills() (int64, error) {
	l, err := g.look()
	if err != nil {
		return 0, err
	}
	return l.OOMKills, nil
}

// Remove kills what is left and removes the group.
func (g *group) Remove() error {
	_, err := g.ask(&control.Request{Op: control.OpRemove})
	if errors.Is(err, sandbox.ErrUnavailable) {
		return nil // gone with the machine
	}
	return err
}
