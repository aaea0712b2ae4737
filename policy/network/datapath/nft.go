package datapath

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/opendsec/dsec/policy/network"
	"github.com/opendsec/dsec/policy/network/link"
	"github.com/opendsec/dsec/sandbox"
)

// filter is the datapath in nftables: for nodes where eBPF is refused. It says the same with other means: sets and verdict
// maps judge the first packet of a flow, the connection's mark is the token that it is allowed under. What it lacks
// Capabilities tells: answers to ARP and ND, for one (the gateway is a static neighbour).
type filter struct {
	cfg    Config
	log    *slog.Logger
	tool   string
	events *events
	can    Capabilities

	mu      sync.Mutex // guards all below, and orders transactions
	slots   map[int]*filterSlot
	token   uint32
	classes map[string]bool                           // chains of port rules that are in the kernel
	learned map[uint32]map[netip.Addr]*learnedAddress // by token
	banned  []netip.Prefix
}

// filterSlot is kept in a file too, which is written ahead of the transaction.
type filterSlot struct {
	Index      int               `json:"index"`
	Generation [2]uint64         `json:"generation"` // in force, and being set
	Token      [2]uint32         `json:"token"`
	Digest     [2]string         `json:"digest"`
	Limits     network.Limits    `json:"limits"`
	Base       map[Reason]uint64 `json:"base"` // counters at the time of Attach
	Sent, Got  [2]uint64
	Untold     uint64
	First      uint32 `json:"first"` // no token of this sandbox is older
	Group      Group  `json:"group"` // private network, and what the rules know it by
	Number     uint32 `json:"number"`
}

const table4 = "datapath"

// OpenNftables opens the datapath in nftables. It is sandbox.ErrUnsupported without the nft program or the kernel's part.
func OpenNftables(cfg Config) (Datapath, error) {
	tool, err := exec.LookPath("nft")
	if err != nil {
		return nil, fmt.Errorf("open the datapath: nft is not installed: %w", sandbox.ErrUnsupported)
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	f := &filter{cfg: cfg, log: cfg.Log, tool: tool, events: newEvents(), slots: map[int]*filterSlot{}, classes: map[string]bool{}, learned: map[uint32]map[netip.Addr]*learnedAddress{}}
	err = f.open()
	if err == nil {
		err = f.listen()
	}
	if err != nil {
		return nil, fmt.Errorf("open the datapath: %w", errors.Join(err, f.events.close()))
	}
	return f, nil
}

func (f *filter) dir() string          { return filepath.Join(f.cfg.Dir, "nftables") }
func (f *filter) file(slot int) string { return filepath.Join(f.dir(), strconv.Itoa(slot)+".json") }
func (f *filter) Kind() string         { return Nftables }
func (f *filter) Events() <-chan Event { return f.events.out }
func (f *filter) Lost() uint64         { return f.events.lost.Load() }

func (f *filter) Capabilities() Capabilities { return f.can }

func (f *filter) open() error {
	if err := os.MkdirAll(f.dir(), 0o700); err != nil {
		return err
	}
	err := f.cfg.Router.Do(func() error {
		return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte("1"), 0)
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	base := f.base()
	if _, err := f.run("list chain inet " + table4 + " " + f.marker(base)); err != nil {
		// It is not there, or of another version: from nothing. What was attached is denied until it is again.
		if err := os.RemoveAll(f.dir()); err != nil {
			return err
		}
		if err := os.MkdirAll(f.dir(), 0o700); err != nil {
			return err
		}
		script := "add table inet datapath\ndelete table inet datapath\nadd table arp datapath\ndelete table arp datapath\n" + base +
			"add chain inet datapath " + f.marker(base) + "\n"
		if _, err := f.run(script); err != nil {
			return fmt.Errorf("%w: %w", err, sandbox.ErrUnsupported)
		}
	} else if err := f.adopt(); err != nil {
		return err
	}
	return f.Forbid(f.cfg.Forbidden)
}

// run has nft carry out a script, as one transaction, in the router's namespace.
func (f *filter) run(script string) (string, error) {
	if script == "" {
		return "", nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	args := []string{"-f", "-"}
	if strings.HasPrefix(script, "list set") {
		args = append([]string{"-j"}, strings.Fields(script)...) // a script's answers are never in JSON
	}
	cmd := exec.CommandContext(ctx, f.tool, args...)
	cmd.Stdin = strings.NewReader(script)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &limited{w: &errs, left: 2000}
	if err := f.cfg.Router.Do(cmd.Start); err != nil {
		return "", fmt.Errorf("start nft: %w", err)
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// limited keeps the start of what is written.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	_, err := l.w.Write(p[:n])
	return len(p), err
}

func (f *filter) adopt() error {
	files, err := filepath.Glob(filepath.Join(f.dir(), "*.json"))
	if err != nil {
		return err
	}
	for _, path := range files {
		slot, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".json"))
		if err != nil {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		s := &filterSlot{}
		if err := json.Unmarshal(b, s); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		f.token = max(f.token, s.Token[0], s.Token[1])
		// Killed while it set a policy: whether the transaction was carried out is seen by what it made.
		if s.Token[1] != 0 {
			if _, err := f.run(fmt.Sprintf("get element inet datapath fresh { %d . %#x }", s.Index, s.Token[1])); err == nil {
				s.Generation[0], s.Token[0], s.Digest[0] = s.Generation[1], s.Token[1], s.Digest[1]
			}
			s.Generation[1], s.Token[1], s.Digest[1] = 0, 0, ""
		}
		f.slots[slot] = s
	}
	return nil
}

func (f *filter) save(slot int, s *filterSlot) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.file(slot)+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(f.file(slot)+".new", f.file(slot))
}

// attached finds a slot; f.mu is held.
func (f *filter) attached(slot int) (*filterSlot, error) {
	if err := checkSlot(slot); err != nil {
		return nil, err
	}
	s := f.slots[slot]
	if s == nil {
		return nil, fmt.Errorf("slot %d is not attached: %w", slot, sandbox.ErrNotFound)
	}
	return s, nil
}

func hardware(m [6]byte) string { return net.HardwareAddr(m[:]).String() }

func (f *filter) Attach(slot int, a Attachment) error {
	if err := checkSlot(slot); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.slots[slot] != nil {
		return fmt.Errorf("slot %d is attached: %w", slot, sandbox.ErrAlreadyExists)
	}
	err := f.cfg.Router.Do(func() error {
		_, err := net.InterfaceByIndex(a.Index)
		return err
	})
	if err != nil {
		return fmt.Errorf("attach slot %d: %w", slot, err)
	}
	s := &filterSlot{Index: a.Index, First: f.token + 1}
	sums, err := f.read(slot)
	if err != nil {
		return fmt.Errorf("attach slot %d: %w", slot, err)
	}
	s.Base, s.Sent, s.Got, s.Untold = sums.denied, sums.sent, sums.got, sums.untold
	if err := f.save(slot, s); err != nil {
		return fmt.Errorf("attach slot %d: %w", slot, err)
	}
	p := f.cfg.Router.Plan()
	script := fmt.Sprintf("add chain inet datapath s%[1]d\nflush chain inet datapath s%[1]d\n"+
		"add element inet datapath sources4 { %[2]d . %[3]s . %[4]s }\nadd element inet datapath sources6 { %[2]d . %[3]s . %[5]s }\n",
		slot, a.Index, hardware(p.MAC(slot)), p.Address4(slot), p.Address6(slot))
	if _, err := f.run(script); err != nil {
		return errors.Join(fmt.Errorf("attach slot %d: %w", slot, err), os.Remove(f.file(slot)))
	}
	f.slots[slot] = s
	return nil
}

func (f *filter) Clear(slot int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if errors.Is(err, sandbox.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p := f.cfg.Router.Plan()
	var b strings.Builder
	fmt.Fprintf(&b, "delete element inet datapath sources4 { %[1]d . %[2]s . %[3]s }\ndelete element inet datapath sources6 { %[1]d . %[2]s . %[4]s }\n",
		s.Index, hardware(p.MAC(slot)), p.Address4(slot), p.Address6(slot))
	f.leave(&b, slot, s)
	f.unlimit(&b, slot, s)
	if s.Token[0] != 0 {
		fmt.Fprintf(&b, "delete element inet datapath slots { %d }\n", s.Index)
		f.stale(&b, s)
	}
	fmt.Fprintf(&b, "flush chain inet datapath s%d\n", slot)
	for _, t := range s.Token {
		f.dropMaps(&b, t)
		delete(f.learned, t)
	}
	fmt.Fprintf(&b, "delete chain inet datapath s%d\n", slot)
	if _, err := f.run(b.String()); err != nil {
		return fmt.Errorf("clear slot %d: %w", slot, err)
	}
	delete(f.slots, slot)
	return errors.Join(f.forgetFlows(slot), os.Remove(f.file(slot)))
}

func (f *filter) Generation(slot int) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, err := f.attached(slot)
	if err != nil {
		return 0, err
	}
	return s.Generation[0], nil
}

func (f *filter) Slots() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []int
	for slot := range link.Slots {
		if f.slots[slot] != nil {
			out = append(out, slot)
		}
	}
	return out
}

func (f *filter) Forbid(prefixes []netip.Prefix) error {
	all, err := forbidden(f.cfg.Router, prefixes)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.banned = all
	var v4, v6 []string
	for _, p := range all {
		if p.Addr().Is4() {
			v4 = append(v4, p.String())
		} else {
			v6 = append(v6, p.String())
		}
	}
	_, err = f.run(fmt.Sprintf("flush set inet datapath never4\nflush set inet datapath never6\nadd element inet datapath never4 { %s }\nadd element inet datapath never6 { %s }\n",
		strings.Join(v4, ", "), strings.Join(append(v6, "::ffff:0:0/96"), ", ")))
	return err
}

func (f *filter) Close() error { return f.events.close() }

func (f *filter) Destroy() error {
	_, err := f.run("delete table inet datapath\ndelete table arp datapath\n")
	return errors.Join(err, f.Close(), os.RemoveAll(f.dir()))
}
