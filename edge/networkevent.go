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
			if b, err := e.find(ev.Sandbox); err == nil {
				b.noteNetwork(ev)
			}
		case <-e.closing:
			return
		}
	}
}

func (b *box) noteNetwork(ev NetworkEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.machine.State(); s != sandbox.StateRunning && s != sandbox.StatePaused {
		return
	}
	if now := b.e.boot(); now-b.netSecond >= time.Second {
		b.netSecond, b.netNoted = now, 0
	}
	if b.netNoted++; b.netNoted > networkEventsRate {
		b.netLeftOut++
		return
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
	}
}
