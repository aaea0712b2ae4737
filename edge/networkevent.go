package edge

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// NetworkEvent is something that happened to a sandbox's traffic.
type NetworkEvent struct {
	At             time.Time
	Sandbox        string
	Type           string // "network_" and what: denied, ended, ...
	Name           string
	Remote         netip.AddrPort
	Protocol       string
	Rule, Why      string
	Sent, Received uint64
	Suppressed     int

	reached chan struct{} // of a mark in the queue: closed when all before it is recorded
}

// Events that nobody could record yet are bounded, and so is what one sandbox may have recorded in a second.
const (
	maxNetworkEvents  = 4096
	networkEventsRate = 20
)

// NetworkEvent records an event in the sandbox's record. It does not block; what is too much is counted.
func (e *Edge) NetworkEvent(ev NetworkEvent) {
	select {
	case e.netEvents <- ev:
	default:
		e.netLost.Add(1)
	}
}

// followNetwork writes network events until the edge closes.
func (e *Edge) followNetwork() {
	for {
		select {
		case ev := <-e.netEvents:
			if ev.reached != nil {
				close(ev.reached)
			} else if b, err := e.find(ev.Sandbox); err == nil {
				// They alone can fill the record, while a command runs that does not end.
				if b.noteNetwork(ev) && b.log.Full() {
					e.tidy.later(e, b.compact)
				}
			}
		case <-e.closing:
			return
		}
	}
}

// lastEvents bounds how long the end of a sandbox waits for what its traffic came to.
const lastEvents = time.Second

// settleNetwork waits until the events so far of a sandbox's traffic are in its record, which is about to be closed.
func (b *box) settleNetwork() {
	b.mu.Lock()
	has := b.net.asked != nil
	b.mu.Unlock()
	if !has {
		return
	}
	mark, patience := make(chan struct{}), time.NewTimer(lastEvents)
	defer patience.Stop()
	select {
	case b.e.netEvents <- NetworkEvent{reached: mark}:
	case <-patience.C:
		return
	case <-b.e.closing:
		return
	}
	select {
	case <-mark:
	case <-patience.C:
	case <-b.e.closing:
	}
}

// noteNetwork tells whether it recorded the event.
func (b *box) noteNetwork(ev NetworkEvent) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.machine.State()
	if state != sandbox.StateRunning && state != sandbox.StatePaused && state != sandbox.StateStopping {
		return false
	}
	if state == sandbox.StateStopping && !b.netLast { // what it spent before does not cost it the last ones
		b.netLast, b.netSecond = true, 0
	}
	if now := b.e.boot(); now-b.netSecond >= time.Second {
		b.netSecond, b.netNoted = now, 0
	}
	if b.netNoted++; b.netNoted > networkEventsRate {
		b.netLeftOut++
		return false
	}
	note := &record.Note{Type: ev.Type, Message: ev.Why, Attributes: map[string]string{}}
	for k, v := range map[string]string{"name": ev.Name, "protocol": ev.Protocol, "rule": ev.Rule} {
		if v != "" {
			note.Attributes[k] = clip(v, 256)
		}
	}
	if ev.Remote.IsValid() {
		note.Attributes["remote"] = ev.Remote.String()
	}
	if ev.Sent > 0 || ev.Received > 0 {
		note.Attributes["sent"], note.Attributes["received"] = fmt.Sprint(ev.Sent), fmt.Sprint(ev.Received)
	}
	if n := ev.Suppressed + b.netLeftOut; n > 0 {
		note.Attributes["left_out"] = fmt.Sprint(n)
		b.netLeftOut = 0
	}
	if err := b.append(&record.Entry{Body: &record.Entry_Note{Note: note}}); err != nil {
		b.e.log.Debug("record a network event", "sandbox", b.id, "err", err)
		return false
	}
	return true
}
