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
	a4, a6 := netip.PrefixFrom(p.Address4(slot), 32), netip.PrefixFrom(p.Address6(slot), 128)
	err := r.space.Within(netns, func() error { return r.inside(a4, a6) })
	if err == nil {
		err = r.apply(
			linux.SettleLink(index),
			linux.AddNeighbour(index, a4.Addr(), p.MAC(slot)),
			linux.AddNeighbour(index, a6.Addr(), p.MAC(slot)),
			linux.AddRoute(linux.RouteTo{To: a4, Index: index, From: p.Gateway4()}),
			linux.AddRoute(linux.RouteTo{To: a6, Index: index, From: p.Gateway6()}),
		)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("link of slot %d: %w", slot, err), r.apply(linux.DeleteLink(index)))
	}
	return nil
}

// inside sets up the sandbox's end, from within its namespace.
func (r *Router) inside(a4, a6 netip.Prefix) error {
	route, err := linux.OpenRoute()
	if err != nil {
		return err
	}
	defer route.Close()
	index, err := linux.LinkIndex(Inside)
	if err != nil {
		return err
	}
	p := r.cfg.Plan
	return route.Apply(
		linux.UpLink(1),
		linux.QuietLink(index),
		linux.UpLink(index),
		linux.SettleLink(index),
		linux.AddAddress(index, a4),
		linux.AddAddress(index, a6),
		linux.TakeAddress(index, a6.Addr()),
		linux.AddNeighbour(index, p.Gateway4(), p.GatewayMAC()),
		linux.AddNeighbour(index, p.Gateway6(), p.GatewayMAC()),
		linux.AddRoute(linux.RouteTo{To: netip.MustParsePrefix("0.0.0.0/0"), Index: index, Via: p.Gateway4()}),
		linux.AddRoute(linux.RouteTo{To: netip.MustParsePrefix("::/0"), Index: index, Via: p.Gateway6()}),
	)
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
