package link

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// MakeTap makes the link of a slot for a machine: an interface of the router whose other side is not one of another
// namespace but a queue of frames, for the machine's monitor. Whoever is inside is to be what End says. The link is there
// as long as the queue is open; after an error nothing is left. It is sandbox.ErrAlreadyExists when the slot has a link.
func (r *Router) MakeTap(slot int) (*os.File, error) {
	if slot < 0 || slot >= Slots {
		return nil, fmt.Errorf("slot %d: there are %d: %w", slot, Slots, sandbox.ErrInvalid)
	}
	index := Index(slot)
	var queue *os.File
	err := r.space.Do(func() (err error) {
		queue, err = linux.OpenTap(slotPrefix+strconv.Itoa(slot), index)
		return err
	})
	if err != nil {
		if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EEXIST) {
			err = fmt.Errorf("%w: %w", sandbox.ErrAlreadyExists, err)
		} else if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			err = fmt.Errorf("%w: %w: machines have a network where the kernel has tap interfaces (modprobe tun)", sandbox.ErrUnsupported, err)
		}
		return nil, fmt.Errorf("link of slot %d: %w", slot, err)
	}
	reqs := append([]linux.Request{linux.ChangeLink(index, r.cfg.Plan.GatewayMAC(), r.cfg.MTU, nil), linux.QuietLink(index), linux.UpLink(index)}, r.near(slot)...)
	if err := r.apply(reqs...); err != nil {
		return nil, errors.Join(fmt.Errorf("link of slot %d: %w", slot, err), queue.Close())
	}
	return queue, nil
}
