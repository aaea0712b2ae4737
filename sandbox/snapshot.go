package sandbox

import (
	"context"
	"fmt"
	"os"
	"time"
)

// SnapshotID names a snapshot of a sandbox's disk: 'n', four characters of edge id, fifteen random characters. Like a
// sandbox's id it tells its edge, which alone has it.
type SnapshotID string

// NewSnapshotID draws a snapshot id on the given edge.
func NewSnapshotID(edge EdgeID) SnapshotID { return SnapshotID("n" + string(NewID(edge))[1:]) }

// Edge returns the edge that the id encodes.
func (id SnapshotID) Edge() EdgeID {
	if len(id) != idLen {
		return ""
	}
	return EdgeID(id[1 : 1+edgeIDLen])
}

// ParseSnapshotID checks s and returns it as a SnapshotID. Error: ErrInvalid.
func ParseSnapshotID(s string) (SnapshotID, error) {
	if len(s) == idLen && s[0] == 'n' {
		if _, err := ParseID("s" + s[1:]); err == nil {
			return SnapshotID(s), nil
		}
	}
	return "", fmt.Errorf("snapshot id %.40q: %w: want 'n' and %d lower-case letters and digits", s, ErrInvalid, idLen-1)
}

// SnapshotCost tells how long the parts of taking a snapshot took, and what it takes.
type SnapshotCost struct {
	Flush  time.Duration // writing what was dirty, while the sandbox ran
	Frozen time.Duration // in all; 0 when it was frozen already
	Freeze time.Duration // until nothing ran any more
	Take   time.Duration // the snapshot itself
	Bytes  int64         // that it takes of the node's disk, where Capabilities.Memory
}

// Snapshotter is an optional ability of a Backend: keeping the disk of a running instance as it is at one moment, and
// creating instances on it (Spec.Snapshots). Processes, memory and /dev/shm are part of a snapshot where
// Capabilities.Memory: instances are then made of the last of Spec.Snapshots, in which they go on.
type Snapshotter interface {
	// Snapshot freezes the instance, unless frozen says that it is already, and keeps what it has written so far. On an
	// error nothing is kept, and the instance runs as before.
	Snapshot(ctx context.Context, inst Instance, id SnapshotID, frozen bool) (SnapshotCost, error)
	// OpenSnapshot opens the directory of what the sandbox had written: the upper directory of an overlay, read-only,
	// with its whiteouts; owners are ids of the sandbox. Error: ErrNotFound.
	OpenSnapshot(id SnapshotID) (*os.File, error)
	// DeleteSnapshot forgets one; instances made of it go on. A missing one is no error.
	DeleteSnapshot(id SnapshotID) error
	// Snapshots names those there are.
	Snapshots() ([]SnapshotID, error)
}
