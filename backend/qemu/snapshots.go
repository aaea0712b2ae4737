package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// NewSuffix marks a directory of a snapshot that is not finished.
const NewSuffix = ".new"

// Snapshots names the snapshots of an edge that have a directory in root, those that are not finished too. Nothing where
// there is no root.
func Snapshots(root string, edge sandbox.EdgeID) ([]sandbox.SnapshotID, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []sandbox.SnapshotID
	for _, e := range entries {
		if id, err := sandbox.ParseSnapshotID(strings.TrimSuffix(e.Name(), NewSuffix)); err == nil && id.Edge() == edge {
			out = append(out, id)
		}
	}
	return out, nil
}

// CopyFile copies a file of a machine, holes and all, to one that is not there yet.
func CopyFile(ctx context.Context, to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(linux.CopySparse(ctx, dst, src), dst.Close())
}

// SnapshotError says of what failed whose snapshot it was, and what to do where there was no room: sandbox.ErrExhausted.
func SnapshotError(id sandbox.ID, err error) error {
	if linux.NoRoom(err) {
		err = fmt.Errorf("%w: the disk of the node's state is full: delete snapshots or make room: %w", sandbox.ErrExhausted, err)
	}
	return fmt.Errorf("snapshot of %s: %w", id, err)
}
