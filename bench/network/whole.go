package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

// whole is a node with a network. It lives in the network namespace that this process has for itself.
type whole struct {
	*testkit.Node
	work, state string
	warm        int
	backend     dsecv1.Backend
}

const base = "debian"

func (b *bench) startWhole(ctx context.Context, warm int, opts ...string) (w *whole, err error) {
	w = &whole{warm: warm}
	if w.work, err = os.MkdirTemp("/var/tmp", "bn-"); err != nil { // a disk, and a short path: sockets lie below it
		return nil, err
	}
	w.state = filepath.Join(w.work, "s")
	var flags []string
	for _, o := range append([]string{"network=on", "resolver=198.51.100.53", fmt.Sprintf("warm=%d", warm), "pool=4g"}, opts...) {
		flags = append(flags, "--opt", o)
	}
	w.Node, err = testkit.StartNode(ctx, b.dsec, w.state, flags...)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(w.work))
	}
	debian, err := testkit.DebianBase(ctx)
	if err == nil {
		var f *os.File
		if f, err = os.Open(debian); err == nil {
			_, err = w.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: base}, f, nil)
			f.Close()
		}
	}
	if err != nil {
		_, serr := w.stop()
		return nil, errors.Join(err, serr)
	}
	return w, nil
}

// stop ends the node and lists what it has left on the machine.
func (w *whole) stop() ([]string, error) {
	left, err := w.Stop()
	if err != nil {
		return left, err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return left, err
	}
	for _, l := range links {
		if name := l.Attrs().Name; name != "lo" {
			left = append(left, "interface "+name)
		}
	}
	c, err := nftables.New()
	if err != nil {
		return left, err
	}
	tables, err := c.ListTables()
	for _, t := range tables {
		left = append(left, "nftables table "+t.Name)
	}
	return left, errors.Join(err, os.RemoveAll(w.work))
}

func (w *whole) create(ctx context.Context, n int, rules ...string) ([]string, error) {
	ttl := 3600.0
	var list []*dsecv1.NetworkRule
	for _, r := range rules {
		list = append(list, &dsecv1.NetworkRule{Target: r, Allow: true})
	}
	boxes, err := w.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Count: int32(n), Spec: &dsecv1.SandboxSpec{
		Backend:      w.backend,
		Environment:  &dsecv1.Environment{Base: base},
		Limits:       &dsecv1.Limits{MemoryBytes: 128 << 20, CpuMillis: 1000, Pids: 64, DiskBytes: 32 << 20, ShmBytes: 16 << 20},
		NetworkRules: list, TtlSeconds: &ttl, Labels: map[string]string{"job": "bench"},
	}})
	var ids []string
	for _, s := range boxes {
		ids = append(ids, s.GetId())
	}
	return ids, err
}

func (w *whole) stopAll(ctx context.Context) error {
	_, err := w.Client.Sandboxes.StopSandboxes(ctx, &dsecv1.StopSandboxesRequest{Labels: map[string]string{"job": "bench"}})
	return err
}

// settle waits until shells are ready again.
func (w *whole) settle(ctx context.Context) error { return w.await(ctx, w.warm, 2*time.Minute) }

// await waits until so many shells and machines are ready.
func (w *whole) await(ctx context.Context, n int, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r, err := w.Client.Node.GetNode(ctx, &dsecv1.GetNodeRequest{})
		if err == nil && int(r.GetWarmShells()) >= n {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for warm shells: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// creations: with a network beside without, in turns, each from a shell that was ready.
func (b *bench) creations(ctx context.Context) (err error) {
	w, err := b.startWhole(ctx, 8)
	if err != nil {
		return err
	}
	defer func() {
		left, serr := w.stop()
		if len(left) > 0 {
			serr = errors.Join(serr, fmt.Errorf("left behind: %q", left))
		}
		err = errors.Join(err, serr)
	}()
	return b.inTurns(ctx, w, "", max(10, b.n/3), func() error { return w.settle(ctx) })
}

// inTurns measures creations with a network beside those without, one after the other, each once ready says so. Nothing
// runs meanwhile: what one made is stopped before.
func (b *bench) inTurns(ctx context.Context, w *whole, prefix string, n int, ready func() error) error {
	kinds := []struct {
		name  string
		rules []string
	}{{prefix + "create_without", nil}, {prefix + "create_with_network", []string{"203.0.113.0/24"}}}
	times, failures := map[string][]time.Duration{}, map[string]int{}
	for i := range n {
		for j := range kinds {
			k := kinds[(i+j)%2]
			if err := w.stopAll(ctx); err != nil {
				return err
			}
			if err := ready(); err != nil {
				return err
			}
			start := time.Now()
			if _, err := w.create(ctx, 1, k.rules...); err != nil {
				failures[k.name]++
				continue
			}
			times[k.name] = append(times[k.name], time.Since(start))
		}
	}
	for i, k := range kinds {
		b.add(measure.FromDurations(k.name, times[k.name], failures[k.name]), kinds[max(0, i-1)].name)
	}
	return nil
}

// live: a change of rules on many sandboxes that run, by as many calls.
func (b *bench) live(ctx context.Context) (err error) {
	w, err := b.startWhole(ctx, 8)
	if err != nil {
		return err
	}
	defer func() {
		_, serr := w.stop()
		err = errors.Join(err, serr)
	}()
	var ids []string
	for len(ids) < b.slots {
		more, err := w.create(ctx, min(100, b.slots-len(ids)), "203.0.113.0/24")
		if err != nil {
			return fmt.Errorf("after %d sandboxes: %w", len(ids), err)
		}
		ids = append(ids, more...)
	}
	var each, all []time.Duration
	failed := 0
	for round := range 5 {
		rules := []*dsecv1.NetworkRule{{Target: fmt.Sprintf("203.0.113.%d", round+1), Allow: true}, {Target: "pypi", Allow: true}}
		start := time.Now()
		times, failures, first := measure.Times(ctx, len(ids), 32, func(ctx context.Context, i int) error {
			_, err := w.Client.Sandboxes.SetNetwork(ctx, &dsecv1.SetNetworkRequest{SandboxId: ids[i], Rules: rules})
			return err
		})
		all = append(all, time.Since(start))
		each = append(each, times...)
		if failed += failures; first != nil {
			fmt.Fprintln(os.Stderr, "a change failed:", first)
		}
	}
	b.add(measure.FromDurations(fmt.Sprintf("set_network_%d_live", len(ids)), all, failed))
	r := measure.FromDurations("set_network_call", each, failed)
	r.Note = "one of 32 at once, through the API, recorded before it is applied"
	b.add(r)
	return nil
}

// leftovers: many creations and ends, edges killed in the midst of them, and what is there afterwards.
func (b *bench) leftovers(ctx context.Context) error {
	before, err := programs()
	if err != nil {
		return err
	}
	w, err := b.startWhole(ctx, 8)
	if err != nil {
		return err
	}
	const batch = 25
	made, failed, kills, checks := 0, 0, 0, 0
	var mu sync.Mutex
	for round := 0; made+failed < b.lives; round++ {
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				ids, err := w.create(ctx, batch/2, "203.0.113.0/24", "pypi")
				mu.Lock()
				defer mu.Unlock()
				if made += len(ids); err != nil {
					failed += batch/2 - len(ids)
				}
			})
		}
		if round%5 == 4 { // in the midst of creations
			if err := w.kill("edge"); err != nil {
				fmt.Fprintln(os.Stderr, "kill the edge:", err)
			} else {
				kills++
			}
		}
		if round%5 == 2 {
			if err := w.kill("netproxy"); err != nil {
				fmt.Fprintln(os.Stderr, "kill netproxy:", err)
			} else {
				checks++
			}
		}
		wg.Wait()
		if err := w.stopAll(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stop:", err)
		}
	}
	_ = w.kill("edge") // down finds a dead edge
	left, err := w.stop()
	if err != nil {
		return err
	}
	after, err := programs()
	if err != nil {
		return err
	}
	for _, id := range after {
		if !slices.Contains(before, id) {
			left = append(left, fmt.Sprintf("program %d", id))
		}
	}
	for _, l := range left {
		fmt.Fprintln(os.Stderr, "left behind:", l)
	}
	r := measure.FromValues("leftovers", "things", []float64{float64(len(left))}, 0)
	r.Note = fmt.Sprintf("processes, mounts, groups, interfaces, rules and programs after %d creations, %d creations cut short, %d kills of the edge and %d of what checks names", made, failed, kills+1, checks)
	b.add(r)
	return nil
}

// kill kills the process of a role.
func (w *whole) kill(role string) error {
	text, err := os.ReadFile(filepath.Join(w.state, "run", "up.json"))
	if err != nil {
		return err
	}
	var up struct {
		Roles []struct {
			Name string `json:"name"`
			PID  int    `json:"pid"`
		} `json:"roles"`
	}
	if err := json.Unmarshal(text, &up); err != nil {
		return err
	}
	for _, r := range up.Roles {
		if r.Name == role && r.PID > 1 {
			return syscall.Kill(r.PID, syscall.SIGKILL)
		}
	}
	return fmt.Errorf("no %s runs", role)
}

// programs are the links' programs in the kernel.
func programs() (out []ebpf.ProgramID, err error) {
	for id := ebpf.ProgramID(0); ; {
		if id, err = ebpf.ProgramGetNextID(id); err != nil {
			return out, nil // the last
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it went away
		}
		info, err := p.Info()
		p.Close()
		if err == nil && (info.Name == "from_sandbox" || info.Name == "to_sandbox") {
			out = append(out, id)
		}
	}
}
