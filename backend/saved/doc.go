// Package saved bounds the bytes that the machines of a node save under its state directory: memory and disks of snapshots, memory
// of paused machines that were put away, templates.
//
// A Space accounts them. It remembers nothing that could be forgotten: what is used is what lies in the Places, as its file system
// has allocated it, looked at again whenever it is asked for. So a new process knows what an earlier one saved, and what is removed,
// by whomever, gives room.
//
// Who saves takes a Reservation first, of as much as it may come to at most. While that is held it counts instead of what it has
// been used for; afterwards what was written counts, if it is still there.
//
// Two things refuse a reservation, both sandbox.ErrExhausted: the bound of all that is saved, and the room that stays free on the
// file system, where other things are written too.
package saved
