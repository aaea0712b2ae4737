package edge

import (
	"fmt"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge/record"
	"github.com/opendsec/dsec/sandbox"
)

// StoreFault is something that was wrong with a layer as the store, or the node's cache of it, gave it.
type StoreFault struct {
	At    time.Time
	Layer string // the first sixteen digits of its digest
	What  string // read_failed, store_damaged, store_truncated, cache_damaged
	Count int
}

const (
	storeFaultType = "store_fault"
	// faultsEvery is how often faults are looked for, and the least between two events of one sandbox that differ in
	// nothing but their count.
	faultsEvery = 500 * time.Millisecond
	// maxFaultKinds bounds what is counted of one sandbox: layers times kinds, and more than there can be.
	maxFaultKinds = 256
)

// faultKind tells events of one sandbox apart.
type faultKind struct{ layer, what string }

var faultWords = map[string]string{
	"read_failed":     "reads failed: the store did not answer in time, or gave nothing good",
	"store_damaged":   "the store gave damaged data, which was not served, and asked for again",
	"store_truncated": "the store has less of it than it should, which was not served, and asked for again",
	"cache_damaged":   "the node's cache was damaged, and was fetched again",
}

// followFaults records faults of layers in the records of the sandboxes that have them, until the edge closes.
func (e *Edge) followFaults() {
	tick := time.NewTicker(faultsEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			e.takeFaults()
		case <-e.closing:
			return
		}
	}
}

// takeFaults looks once. What cannot be recorded now is counted, and recorded later.
func (e *Edge) takeFaults() {
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	news := e.cfg.NewStoreFaults()
	if len(news) == 0 {
		return
	}
	for _, b := range e.all() {
		if b.noteFaults(news) && b.log.Full() {
			e.tidy.later(e, b.compact)
		}
	}
}

// noteFaults tells whether it recorded something.
func (b *box) noteFaults(news []StoreFault) (noted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	state := b.machine.State()
	if state != sandbox.StateRunning && state != sandbox.StatePaused && state != sandbox.StateStopping {
		return false
	}
	for _, f := range news {
		if f.At.Before(b.at) || !f.At.After(b.faultsSeen) {
			continue // of before its time, or recorded by an earlier edge
		}
		for _, l := range b.created.GetLayers() {
			if !strings.HasPrefix(strings.TrimPrefix(l, "b3:"), f.Layer) {
				continue
			}
			k := faultKind{l, f.What}
			if b.faults == nil {
				b.faults = map[faultKind]int{}
			}
			if _, known := b.faults[k]; known || len(b.faults) < maxFaultKinds {
				b.faults[k] += f.Count
			}
		}
	}
	for k, count := range b.faults {
		note := &record.Note{Type: storeFaultType, Message: faultWords[k.what], Attributes: map[string]string{
			"layer": k.layer, "what": k.what, "count": fmt.Sprint(count)}}
		if env := b.created.GetSpec().GetEnvironment(); env.GetName() != "" {
			note.Attributes["environment"] = clip(env.GetName(), 256)
		}
		if name := layerName(b.created.GetResolved(), k.layer); name != "" {
			note.Attributes["name"] = clip(name, 256)
		}
		if err := b.append(&record.Entry{Body: &record.Entry_Note{Note: note}}); err != nil {
			b.e.log.Debug("record a store fault", "sandbox", b.id, "err", err)
			return noted
		}
		delete(b.faults, k)
		noted = true
	}
	return noted
}

// layerName is what a layer was asked for by: "base debian@v3".
func layerName(resolved []*dsecv1.ResolvedLayer, digest string) string {
	for _, l := range resolved {
		if l.GetDigest() == digest && l.GetName() != "" {
			return strings.TrimSpace(l.GetKind() + " " + l.GetName())
		}
	}
	return ""
}

// settleFaults records the last faults of a sandbox whose record is about to be closed.
func (b *box) settleFaults() {
	if b.e.cfg.NewStoreFaults != nil {
		b.e.takeFaults()
	}
}
