package edge

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/opendsec/dsec/sandbox"
)

// notRecorded is the error of what could not be recorded, and so is not done.
func notRecorded(what string, err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		what += ": the disk of the node's records is full; make room in its state directory"
	}
	return fmt.Errorf("%s: %w: %w", what, err, sandbox.ErrUnavailable)
}
