package edge

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/opendsec/dsec/sandbox"
)

// notRecorded is the error of what could not be recorded, and so is not done. Without room it is ErrExhausted, which clients do
// not ask again for by themselves: somebody has to make room first.
func notRecorded(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("%s: %w: the disk of the node's records is full; make room in its state directory: %w", what, sandbox.ErrExhausted, err)
	}
	return fmt.Errorf("%s: %w: %w", what, err, sandbox.ErrUnavailable)
}
