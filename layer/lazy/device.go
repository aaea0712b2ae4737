package lazy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/fuse"
	"github.com/opendsec/dsec/internal/hold"
	"github.com/opendsec/dsec/sandbox"
)

// What the holder keeps for whoever serves.
const (
	deviceName = "lazy/device"
	mountName  = "lazy/mount"
)

// Serve serves reads until ctx is done: over the device that an earlier server left with the holder, or a new one.
// While it lives it renews a lease on the device; when that lapses the holder answers instead (Fail).
func (s *Server) Serve(ctx context.Context, h *hold.Client) error {
	device, mount, err := openDevice(h)
	if err != nil {
		return err
	}
	defer device.Close()
	defer mount.Close()
	ctx, stop := context.WithCancel(ctx)
	var side sync.WaitGroup
	defer side.Wait()
	defer stop()
	s.lease(h, device, mount)
	side.Go(func() {
		tick := time.NewTicker(max(s.o.Timeout/4, 50*time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.lease(h, device, mount)
			}
		}
	})
	side.Go(func() { s.saving(ctx) })
	return fuse.Serve(ctx, device, s)
}

// openDevice takes device and mount from the holder, or makes them and puts them there.
func openDevice(h *hold.Client) (device, mount *os.File, err error) {
	device, derr := h.Get(deviceName)
	mount, merr := h.Get(mountName)
	if derr == nil && merr == nil {
		return device, mount, nil
	}
	for _, f := range []*os.File{device, mount} {
		if f != nil {
			f.Close() // one without the other is of no use
		}
	}
	for _, err := range []error{derr, merr} {
		if err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return nil, nil, err
		}
	}
	device, mount, err = fuse.New("dsec-layers")
	if err != nil {
		return nil, nil, err
	}
	if err := putDevice(h, device, mount); err != nil {
		device.Close()
		mount.Close()
		return nil, nil, err
	}
	return device, mount, nil
}

func putDevice(h *hold.Client, device, mount *os.File) error {
	return errors.Join(h.Put(deviceName, device), h.Put(mountName, mount))
}

// lease tells the holder that this server lives; a new holder gets the descriptors again.
func (s *Server) lease(h *hold.Client, device, mount *os.File) {
	err := h.Lease(deviceName, s.o.Timeout)
	if errors.Is(err, sandbox.ErrNotFound) {
		if err = putDevice(h, device, mount); err == nil {
			err = h.Lease(deviceName, s.o.Timeout)
		}
	}
	if err != nil {
		s.o.Log.Warn("no lease from the holder: if this process dies for good, readers wait until another is started", "err", err)
	}
}

// Lapsed is what a holder does when no server renews its lease on the device: it answers all reads with EIO, and
// writes them down as faults, until ctx is done.
func Lapsed(faults *Faults, log *slog.Logger) func(ctx context.Context, name string, f *os.File) {
	return func(ctx context.Context, name string, f *os.File) {
		if name != deviceName {
			return
		}
		log.Error("nobody serves layers: reads fail until somebody does")
		if err := fuse.Serve(ctx, f, &failing{faults: faults, log: log}); err != nil {
			log.Error("answer in place of the server", "err", err)
		}
	}
}

// failing has files, but nothing of what is in them.
type failing struct {
	faults *Faults
	log    *slog.Logger
}

func (*failing) Find(string) (fuse.File, bool)   { return fuse.File{}, false }
func (*failing) Get(id uint64) (fuse.File, bool) { return fuse.File{}, false }
func (*failing) Opened(uint64)                   {}
func (*failing) Released(uint64)                 {}
func (f *failing) Read(ctx context.Context, id uint64, off int64, _ int) ([][]byte, func(), error) {
	select {
	case <-time.After(leastFault):
	case <-ctx.Done():
		return nil, nil, ctx.Err() // there is a server again
	}
	if err := f.faults.Record(id, time.Now()); err != nil {
		f.log.Error("a store fault is not recorded", "err", err)
	}
	return nil, nil, fmt.Errorf("file %016x at %d: %w", id, off, syscall.EIO)
}
