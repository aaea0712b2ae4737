package cgroup

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// favorMoves has the kernel favour processes that change groups over those that fork, as long as the descriptor is open.
//
// Every command moves into its group as its first step. The lock that this takes for writing is one for the whole machine,
// and after a pause the writer waits until each processor has been through a quiet state: 7 ms of a command that takes 4
// (measured on two processors; back to back the lock is still awake). With favordynmods the lock never falls asleep; forks pay a
// memory barrier. The option belongs to a hierarchy and holds for all: a hierarchy of our own, with no controllers and only
// its root, touches no mount of the host's, is shared by all nodes of a machine, and ends with its last descriptor,
// after a crash too (on Linux 6.18 moves stay quick nevertheless until the machine boots again). /proc/PID/cgroup has a line "name=favordynmods:/" meanwhile.
func favorMoves() (*os.File, error) {
	for end := time.Now().Add(dying); ; time.Sleep(10 * time.Millisecond) {
		f, err := linux.NewMount("cgroup", linux.NoSuid|linux.NoDev|linux.NoExec,
			linux.Option{Key: "none", Flag: true}, linux.Option{Key: "name", Value: hierarchy}, linux.Option{Key: "favordynmods", Flag: true})
		// EBUSY: a hierarchy of that name is about to end.
		if err == nil || !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return f, err
		}
	}
}

// hierarchy is its name, which sandboxes can read.
const hierarchy = "favordynmods"

// dying bounds the wait for a hierarchy to end.
const dying = 2 * time.Second
