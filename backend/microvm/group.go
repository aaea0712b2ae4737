package microvm

import (
	"context"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/sandbox"
)

// Group names a command's control group.
func (i *instance) Group(_ context.Context, command string) (sandbox.Group, error) {
	return &qemu.Group{Name: command, Ask: i.ask}, nil
}

// OpenGroup finds a command's control group.
func (i *instance) OpenGroup(command string) (sandbox.Group, error) {
	g := &qemu.Group{Name: command, Ask: i.ask}
	return g, g.Open()
}
