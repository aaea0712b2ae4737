package wire

import (
	"bufio"
	"encoding/binary"
	"io"
)

// WatchKind says what happened to a file in a watched directory.
type WatchKind uint8

// The kinds.
const (
	WatchCreated WatchKind = iota + 1 // made, or moved to this name
	WatchWritten
	WatchRemoved
	WatchMoved      // moved away from this name
	WatchAttributes // mode, owner, times
	WatchLost       // events were left out here: look anew. No name

	watchLast = WatchLost
)

// MaxWatchName bounds a WatchEvent's name, in bytes.
const MaxWatchName = MaxPath

// WatchEvent is an event of a watched directory. Events follow each other in the stream of a Watch request, each with its
// length before it.
type WatchEvent struct {
	Kind WatchKind
	Dir  bool
	Name string // relative to the watched directory; raw bytes
}

// Append appends the event with its length.
func (m *WatchEvent) Append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(2+len(m.Name)))
	b = append(b, byte(m.Kind))
	return append(appendBool(b, m.Dir), m.Name...)
}

// ReadWatchEvent reads the next event. Errors: those of r, io.ErrUnexpectedEOF in the middle of one, *Error for what
// is none.
func ReadWatchEvent(r *bufio.Reader) (m WatchEvent, err error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return m, err
	}
	if n < 2 || n > 2+MaxWatchName {
		return m, errMalformed("watch event")
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return m, err
	}
	if m.Kind = WatchKind(b[0]); m.Kind == 0 || m.Kind > watchLast || b[1] > 1 {
		return m, errMalformed("watch event")
	}
	m.Dir, m.Name = b[1] == 1, string(b[2:])
	return m, nil
}
