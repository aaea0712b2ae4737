package link

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/sandbox"
)

// Inside is the name of a sandbox's interface in the sandbox.
const Inside = "eth0"

// Index is the index of a slot's host end in the router.
func Index(slot int) int { return slotIndex + slot }

// SlotAt is the slot of an interface index, -1 where it is none's.
func SlotAt(index int) int {
	if slot := index - slotIndex; slot >= 0 && slot < Slots {
		return slot
	}
	return -1
}

// Make gives a network namespace the link of a slot: an interface with its addresses, routes and the gateway as a
// neighbour, all up. It is sandbox.ErrAlreadyExists when the slot has a link, or the namespace such an interface. After an error nothing is left.
func (r *Router) Make(slot int, netns *os.File) error {
	if slot < 0 || slot >= Slots {
		return fmt.Errorf("slot %d: there are %d: %w", slot, Slots, sandbox.ErrInvalid)
	}
	p, index := r.cfg.Plan, Index(slot)
	near := linux.VethEnd{Name: slotPrefix + strconv.Itoa(slot), Index: index, MAC: p.GatewayMAC(), Up: true}
	far := linux.VethEnd{Name: Inside, MAC: p.MAC(slot), Space: netns}
	if err := r.apply(linux.AddVeth(near, far, r.cfg.MTU)); err != nil {
		if errors.Is(err, syscall.EEXIST) || errors.Is(err, syscall.EBUSY) {
			err = fmt.Errorf("%w: %w", sandbox.ErrAlreadyExists, err)
		}
		return fmt.Errorf("link of slot %d: %w", slot, err)
	}
	err := r.space.Within(netns, func() error { return r.inside(slot) })
	if err == nil {
		err = r.apply(r.near(slot)...)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("link of slot %d: %w", slot, err), r.apply(linux.DeleteLink(index)))
	}
	return nil
}

// near are the requests that lead to the sandbox, once the host's end is there.
func (r *Router) near(slot int) []linux.Request {
	p, index := r.cfg.Plan, Index(slot)
	a4, a6, mac := p.Address4(slot), p.Address6(slot), p.MAC(slot)
	return []linux.Request{
		linux.SettleLink(index),
		linux.AddNeighbour(index, a4, mac),
		linux.AddNeighbour(index, a6, mac),
		linux.AddRoute(linux.RouteTo{To: netip.PrefixFrom(a4, 32), Index: index, From: p.Gateway4()}),
		linux.AddRoute(linux.RouteTo{To: netip.PrefixFrom(a6, 128), Index: index, From: p.Gateway6()}),
	}
}

// End is what the sandbox's end of a slot's link is.
func (r *Router) End(slot int) linux.LinkEnd {
	p := r.cfg.Plan
	return linux.LinkEnd{MAC: p.MAC(slot), Address4: p.Address4(slot), Address6: p.Address6(slot),
		Gateway4: p.Gateway4(), Gateway6: p.Gateway6(), GatewayMAC: p.GatewayMAC(), MTU: r.cfg.MTU}
}

// inside sets up the sandbox's end, from within its namespace.
func (r *Router) inside(slot int) error {
	route, err := linux.OpenRoute()
	if err != nil {
		return err
	}
	defer route.Close()
	index, err := linux.LinkIndex(Inside)
	if err != nil {
		return err
	}
	end := r.End(slot)
	return route.Apply(append([]linux.Request{linux.UpLink(1)}, end.Requests(index)...)...)
}

// removing is the group of interfaces that are removed together.
const removing = 0xd5ec

// Remove removes the links of slots; a slot without one is no error. The kernel takes tens of milliseconds for a removal,
// and hardly more for many at once; a link whose sandbox's namespace ends is removed by the kernel by itself.
func (r *Router) Remove(slots ...int) error {
	reqs := make([]linux.Request, 0, len(slots)+1)
	for _, s := range slots {
		if s < 0 || s >= Slots {
			return fmt.Errorf("slot %d: there are %d: %w", s, Slots, sandbox.ErrInvalid)
		}
		reqs = append(reqs, linux.GroupLink(Index(s), removing))
	}
	switch len(slots) {
	case 0:
		return nil
	case 1:
		return r.apply(linux.DeleteLink(Index(slots[0])))
	}
	return r.apply(append(reqs, linux.DeleteGroup(removing))...)
}

// Slots lists the slots that have a link, as the kernel knows them.
func (r *Router) Slots() ([]int, error) {
	r.mu.Lock()
	links, err := r.route.Links()
	r.mu.Unlock()
	if err != nil {
		return nil, err
	}
	var out []int
	for index := range links {
		if index >= slotIndex && index < slotIndex+Slots {
			out = append(out, index-slotIndex)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Sweep removes the links of all slots that keep does not want, and returns which.
func (r *Router) Sweep(keep func(slot int) bool) ([]int, error) {
	slots, err := r.Slots()
	if err != nil {
		return nil, err
	}
	gone := slices.DeleteFunc(slots, keep)
	return gone, r.Remove(gone...)
}

func (r *Router) removeAll() error {
	_, err := r.Sweep(func(int) bool { return false })
	return err
}
