package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/internal/linux"
	"github.com/opendsec/dsec/policy/network/datapath"
	"github.com/opendsec/dsec/policy/network/link"
)

// links: what a sandbox's link costs, one at a time.
func (b *bench) links(ctx context.Context) (err error) {
	t, err := build(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	group, removeGroup, err := cgroup()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removeGroup()) }()
	names := []string{"namespace", "link_make", "attach", "set_first", "set_known", "clear", "attach_with_group", "clear_again", "link_remove"}
	times := map[string][]time.Duration{}
	for i := range b.n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var s *linux.NetSpace
		slot := i % link.Slots
		for j, f := range []func() error{
			func() (err error) { s, err = linux.NewNetSpace(); return err },
			func() error { return t.router.Make(slot, s.File()) },
			func() error { return t.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot)}) },
			func() error { return t.dp.Set(slot, 1, rulesFor(10, 2*i)) },
			func() error { return t.dp.Set(slot, 2, rulesFor(10, 2*i)) },
			func() error { return t.dp.Clear(slot) },
			func() error {
				g, remove, err := group()
				if err != nil {
					return err
				}
				err = t.dp.Attach(slot, datapath.Attachment{Index: link.Index(slot), Group: g, Space: s.File()})
				return errors.Join(err, remove())
			},
			func() error { return t.dp.Clear(slot) },
			func() error { return t.router.Remove(slot) },
		} {
			start := time.Now()
			if err := f(); err != nil {
				return fmt.Errorf("%s: %w", names[j], err)
			}
			times[names[j]] = append(times[names[j]], time.Since(start))
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	for _, n := range names {
		b.add(measure.FromDurations(n, times[n], 0))
	}
	const many = 50
	var each []float64
	for range max(1, b.n/many) {
		var slots []int
		for slot := range many {
			if _, err := t.sandbox(slot); err != nil {
				return err
			}
			slots = append(slots, slot)
		}
		start := time.Now()
		if err := t.router.Remove(slots...); err != nil {
			return err
		}
		each = append(each, float64(time.Since(start))/1e6/many)
		for _, slot := range slots {
			if err := t.dp.Clear(slot); err != nil {
				return err
			}
		}
		for _, s := range t.boxes {
			if err := s.Close(); err != nil {
				return err
			}
		}
		t.boxes = nil
	}
	b.add(measure.FromValues(fmt.Sprintf("link_remove_each_of_%d", many), "ms", each, 0))
	return nil
}

// cgroup gives groups of the v2 tree to attach to, which include making and removing one.
func cgroup() (make func() (*os.File, func() error, error), remove func() error, err error) {
	root := "/sys/fs/cgroup/unified"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	top, err := os.MkdirTemp(root, "bench-network-")
	if err != nil {
		return nil, nil, err
	}
	make = func() (*os.File, func() error, error) {
		dir, err := os.MkdirTemp(top, "")
		if err != nil {
			return nil, nil, err
		}
		f, err := os.Open(dir)
		return f, func() error { return errors.Join(f.Close(), os.Remove(dir)) }, err
	}
	return make, func() error { return os.Remove(top) }, nil
}

// policies: changing those of many sandboxes at once.
func (b *bench) policies(ctx context.Context) (err error) {
	t, err := build(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for slot := range b.slots {
		if _, err := t.sandbox(slot); err != nil {
			return err
		}
	}
	generation := uint64(0)
	for _, kind := range []string{"one_policy", "a_policy_each"} {
		var times []time.Duration
		for round := range 5 {
			generation++
			start := time.Now()
			var wg sync.WaitGroup
			errs := make(chan error, b.slots)
			work := make(chan int)
			for range 64 {
				wg.Go(func() {
					for slot := range work {
						salt := round
						if kind == "a_policy_each" {
							salt = 10 + round*b.slots + slot
						}
						if err := t.dp.Set(slot, generation, rulesFor(10, salt)); err != nil {
							errs <- err
						}
					}
				})
			}
			for slot := range b.slots {
				work <- slot
			}
			close(work)
			wg.Wait()
			times = append(times, time.Since(start))
			select {
			case err := <-errs:
				return err
			default:
			}
		}
		b.add(measure.FromDurations(fmt.Sprintf("set_%d_sandboxes_%s", b.slots, kind), times, 0))
	}
	return ctx.Err()
}

// traffic: with a policy, beside the same link without one, which is there twice: what the two differ by is the error of
// the figure. They take turns, since the machine is shared, and ratios are of neighbours in time.
func (b *bench) traffic(ctx context.Context) (err error) {
	boxes := map[string]*linux.NetSpace{}
	kinds := []string{"plain", "policy", "plain_again"}
	for _, kind := range kinds {
		t, err := build(kind == "policy")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, t.close()) }()
		if boxes[kind], err = t.sandbox(7); err != nil {
			return err
		}
		if t.dp != nil {
			if err := t.dp.Set(7, 1, rulesFor(100, 1)); err != nil {
				return err
			}
		}
	}
	figures := []string{"tcp_connect", "tcp_round_trip", "tcp_send"}
	all := map[string]map[string][]float64{}   // by figure and kind
	round := map[string]map[string][]float64{} // the same, the median of each round
	for _, f := range figures {
		all[f], round[f] = map[string][]float64{}, map[string][]float64{}
	}
	note := func(figure, kind string, v ...float64) {
		all[figure][kind] = append(all[figure][kind], v...)
		round[figure][kind] = append(round[figure][kind], measure.Percentile(v, 50))
	}
	for turn := range 90 {
		for i := range kinds {
			kind := kinds[(i+turn)%len(kinds)]
			var connect, trip []float64
			if err := b.connections(ctx, boxes[kind], max(10, b.n/10), func(c, r time.Duration) {
				connect, trip = append(connect, float64(c)/1e6), append(trip, float64(r)/1e6)
			}); err != nil {
				return err
			}
			note("tcp_connect", kind, connect...)
			note("tcp_round_trip", kind, trip...)
		}
		for i := range kinds {
			kind := kinds[(i+turn)%len(kinds)]
			v, err := throughput(boxes[kind], 100*time.Millisecond)
			if err != nil {
				return err
			}
			note("tcp_send", kind, v)
		}
	}
	for _, f := range figures {
		unit := "ms"
		if f == "tcp_send" {
			unit = "s/GiB"
		}
		for _, kind := range kinds {
			r := measure.FromValues(f+"_"+kind, unit, all[f][kind], 0)
			if kind != "plain" {
				var ratios []float64
				for i, v := range round[f][kind] {
					beside := round[f]["plain"][i]
					if kind == "policy" {
						beside = (beside + round[f]["plain_again"][i]) / 2
					}
					ratios = append(ratios, v/beside)
				}
				r.Ratios = map[string]float64{f + "_plain": measure.Percentile(ratios, 50)}
				r.Note = "the ratio is the median of those of neighbouring rounds"
			}
			b.add(r)
		}
	}
	return nil
}

// connections makes some, and does a round trip on each.
func (b *bench) connections(ctx context.Context, s *linux.NetSpace, n int, note func(connect, trip time.Duration)) error {
	for range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		start := time.Now()
		c, err := dial(s)
		if err != nil {
			return err
		}
		connected := time.Now()
		err = ping(c)
		note(connected.Sub(start), time.Since(connected))
		if err := errors.Join(err, c.Close()); err != nil {
			return err
		}
	}
	return nil
}

// throughput sends for a while: seconds per GiB.
func throughput(s *linux.NetSpace, d time.Duration) (float64, error) {
	c, err := dial(s)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	buf := make([]byte, 256<<10)
	start := time.Now()
	sent := 0
	_ = c.(*net.TCPConn).SetNoDelay(false)
	for time.Since(start) < d {
		n, err := c.Write(buf)
		if err != nil {
			return 0, err
		}
		sent += n
	}
	return time.Since(start).Seconds() / (float64(sent) / (1 << 30)), nil
}

// rules: what a policy of many rules costs beside one of few.
func (b *bench) rules(ctx context.Context) (err error) {
	t, err := build(true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	boxes := map[int]*linux.NetSpace{}
	sizes := []int{10, 10_000}
	for i, n := range sizes {
		if boxes[n], err = t.sandbox(i); err != nil {
			return err
		}
		start := time.Now()
		if err := t.dp.Set(i, 1, rulesFor(n, 1)); err != nil {
			return err
		}
		b.add(measure.FromDurations(fmt.Sprintf("set_%d_rules", n), []time.Duration{time.Since(start)}, 0))
	}
	stats, err := ebpf.EnableStats(0) // run time
	if err != nil {
		return err
	}
	defer stats.Close()
	connect, packet := map[int][]time.Duration{}, map[int][]float64{}
	for round := range 30 {
		for i := range sizes {
			n := sizes[(i+round)%2]
			before, runs, err := spent()
			if err != nil {
				return err
			}
			if err := b.connections(ctx, boxes[n], max(10, b.n/10), func(c, _ time.Duration) { connect[n] = append(connect[n], c) }); err != nil {
				return err
			}
			after, more, err := spent()
			if err != nil {
				return err
			}
			packet[n] = append(packet[n], float64(after-before)/float64(more-runs))
		}
	}
	for i, n := range sizes {
		to := sizes[max(0, i-1)]
		b.add(measure.FromDurations(fmt.Sprintf("tcp_connect_%d_rules", n), connect[n], 0), fmt.Sprintf("tcp_connect_%d_rules", to))
		r := measure.FromValues(fmt.Sprintf("program_run_%d_rules", n), "ns", packet[n], 0)
		r.Note = "mean of the packets of whole short connections, by the kernel's own count"
		b.add(r, fmt.Sprintf("program_run_%d_rules", to))
	}
	return nil
}

// spent is the time in the links' programs, and how often they ran.
func spent() (time.Duration, uint64, error) {
	var total time.Duration
	var runs uint64
	for id := ebpf.ProgramID(0); ; {
		var err error
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			return total, runs, nil
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it went away
		}
		info, err := p.Info()
		if err != nil {
			p.Close()
			return 0, 0, err
		}
		stats, err := p.Stats()
		p.Close()
		if err != nil {
			return 0, 0, err
		}
		if info.Name != "from_sandbox" && info.Name != "to_sandbox" {
			continue
		}
		total, runs = total+stats.Runtime, runs+stats.RunCount
	}
}
