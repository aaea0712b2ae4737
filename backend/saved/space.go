package saved

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// DefaultFloor is what stays free on the file system unless said otherwise, bytes: as much as imports of layers leave.
const DefaultFloor = 1 << 30

// Options of a Space.
type Options struct {
	// Limit is the most that may be saved, bytes; 0 = half of what is free, or saved already, when the Space is opened.
	Limit int64
	// Floor is what stays free on the file system, bytes; 0 = DefaultFloor.
	Floor int64
	// Places are where what is saved lies.
	Places []Place
}

// Space bounds what is saved in a directory's file system. It is safe for concurrent use; a nil one bounds nothing.
type Space struct {
	dir          string
	limit, floor int64
	places       []Place

	mu   sync.Mutex
	held []*Reservation
	seen map[string]*measured // directories, as they were
}

// Reservation is room that something is going to be written into. A nil one is of a nil Space.
type Reservation struct {
	s    *Space
	path string // and path + qemu.NewSuffix
	most int64
	free bool // it counts on the file system only
}

// Open makes the Space of the file system that dir lies on.
func Open(dir string, o Options) (*Space, error) {
	s := &Space{dir: dir, limit: o.Limit, floor: o.Floor, places: o.Places, seen: map[string]*measured{}}
	if s.floor == 0 {
		s.floor = DefaultFloor
	}
	if s.limit > 0 {
		return s, nil
	}
	l, err := s.look()
	if err != nil {
		return nil, err
	}
	s.limit = (l.free + l.used) / 2
	return s, nil
}

// Usage is what may be saved at most and what of it is used or reserved, bytes.
func (s *Space) Usage() (size, used int64, err error) {
	if s == nil {
		return 0, 0, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.look()
	return s.limit, l.used + l.reserved, err
}

// Reserve takes room for what is going to lie at path, an entry of a Place, and lies at path + qemu.NewSuffix until it is whole; most
// is what it may come to, bytes, with what is there already. Close must follow. Error: sandbox.ErrExhausted, with what there is, what
// is used, and what to do.
func (s *Space) Reserve(path string, most int64) (*Reservation, error) {
	return s.take(&Reservation{s: s, path: path, most: most})
}

// Room is Reserve for what is not saved, and does not count as such, but is written beside it: it leaves the same room free.
func (s *Space) Room(path string, most int64) (*Reservation, error) {
	return s.take(&Reservation{s: s, path: path, most: most, free: true})
}

// Copy gives a machine a file of its own that is like a saved one. Error: sandbox.ErrExhausted as for Room.
func (s *Space) Copy(ctx context.Context, to, from string) error {
	n, err := Bytes(from)
	if err != nil {
		return err
	}
	room, err := s.Room(to, n)
	if err != nil {
		return fmt.Errorf("copy its disk: %w", err)
	}
	defer room.Close()
	return qemu.CopyFile(ctx, to, from)
}

func (s *Space) take(r *Reservation) (*Reservation, error) {
	if s == nil {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = append(s.held, r)
	if err := s.fits(r); err != nil {
		s.drop(r)
		return nil, err
	}
	return r, nil
}

// Resize makes it a reservation of another size, once more is known of what it is for. After an error it is what it was.
func (r *Reservation) Resize(most int64) error {
	if r == nil {
		return nil
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	before := r.most
	r.most = most
	if most <= before {
		return nil
	}
	err := r.s.fits(r)
	if err != nil {
		r.most = before
	}
	return err
}

// Close gives back what was not used.
func (r *Reservation) Close() {
	if r == nil {
		return
	}
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	r.s.drop(r)
}

// drop forgets a reservation. s.mu is held.
func (s *Space) drop(r *Reservation) {
	s.held = slices.DeleteFunc(s.held, func(o *Reservation) bool { return o == r })
}

// fits tells whether there is room for all that is held, of which r is the last to ask. s.mu is held.
func (s *Space) fits(r *Reservation) error {
	l, err := s.look()
	if err != nil {
		return fmt.Errorf("%w: how much room there is cannot be told: %w", sandbox.ErrUnavailable, err)
	}
	if !r.free && r.most > s.limit {
		return fmt.Errorf("%w: it may take %s, and this node saves %s of machines in all: start it with a greater --opt saved-space, or ask for machines of less memory",
			sandbox.ErrExhausted, text(r.most), text(s.limit))
	}
	if !r.free && l.used+l.reserved > s.limit {
		under := ""
		if n := l.reserved - r.most; n > 0 {
			under = fmt.Sprintf(", %s of it by what is being saved just now", text(n))
		}
		return fmt.Errorf("%w: it may take %s, and of %s that this node saves of machines (--opt saved-space) %s are used%s: delete snapshots (dsec snapshot rm), and end sandboxes that are paused or made of them",
			sandbox.ErrExhausted, text(r.most), text(s.limit), text(l.used+l.reserved-r.most), under)
	}
	if l.free-l.coming < s.floor {
		return fmt.Errorf("%w: it may take %s, and the disk of the node's state has %s free, of which %s stay free and %s are others' that are being written: delete snapshots (dsec snapshot rm) or make room there",
			sandbox.ErrExhausted, text(r.most), text(l.free), text(s.floor), text(max(l.coming-r.most, 0)))
	}
	return nil
}

// text is a size for people.
func text(n int64) string {
	switch {
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// holds tells whether somebody is at work on an entry. s.mu is held.
func (s *Space) holds(path string) bool {
	return slices.ContainsFunc(s.held, func(r *Reservation) bool { return !r.free && (path == r.path || path == r.path+qemu.NewSuffix) })
}

// view is what there is at a moment, bytes.
type view struct {
	used     int64 // by what is nobody's who is at work on it
	reserved int64 // of what may be saved
	free     int64 // on the file system
	coming   int64 // of what is reserved, that is not written yet
}

// look measures. s.mu is held, or nobody else has s.
func (s *Space) look() (v view, err error) {
	if v.used, err = s.measure(); err != nil {
		return v, err
	}
	for _, r := range s.held {
		if !r.free {
			v.reserved += r.most
		}
		var files []file
		for _, path := range []string{r.path, r.path + qemu.NewSuffix} {
			more, err := walk(path)
			if err != nil {
				return v, err
			}
			files = append(files, more...)
		}
		v.coming += max(r.most-sum(files), 0)
	}
	v.free, err = linux.FreeSpace(s.dir)
	return v, err
}
