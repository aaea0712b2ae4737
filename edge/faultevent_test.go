package edge_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/edge"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// faultFile stands for what blobd has written down: every edge reads it from its beginning.
type faultFile struct {
	mu  sync.Mutex
	all []edge.StoreFault
}

func (f *faultFile) add(layer byte, what string, count int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, edge.StoreFault{At: time.Now(), Layer: strings.Repeat(string(layer), 16), What: what, Count: count})
}

func (f *faultFile) reader() func() []edge.StoreFault {
	read := 0
	return func() []edge.StoreFault {
		f.mu.Lock()
		defer f.mu.Unlock()
		news := append([]edge.StoreFault(nil), f.all[read:]...)
		read = len(f.all)
		return news
	}
}

// storeFaults are the events of a sandbox, each as "layer what", with how often in all.
func storeFaults(t *testing.T, n *sandboxtest.Node, id string) map[string]int {
	t.Helper()
	out := map[string]int{}
	stream, err := n.Sandboxes.StreamEvents(sandboxtest.Context(t), &dsecv1.StreamEventsRequest{SandboxId: id})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
		ev := stream.Msg().GetEvent()
		if ev.GetType() != "store_fault" {
			continue
		}
		count := 0
		if _, err := fmt.Sscan(ev.Attributes["count"], &count); err != nil || ev.Message == "" {
			t.Errorf("%v: %v", ev, err)
		}
		out[ev.Attributes["name"]+" "+ev.Attributes["what"]] += count
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// A fault of a layer is an event of the sandboxes that have it, each fault once, also when the edge was away meanwhile.
func TestStoreFaultEvents(t *testing.T) {
	file := &faultFile{}
	file.add('0', "read_failed", 7) // before their time
	n := sandboxtest.Start(t, fakeFactory(), func(c *edge.Config) { c.NewStoreFaults = file.reader() })
	with := func(layers string) string {
		req := n.Request(nil)
		req.Layers = nil
		for _, c := range layers {
			req.Layers = append(req.Layers, &dsecv1.ResolvedLayer{Digest: "b3:" + strings.Repeat(string(c), 64), Kind: "toolkit", Name: "t" + string(c)})
		}
		resp, err := n.Creator.CreateResolved(sandboxtest.Context(t), req)
		if err != nil || resp.Response.Results[0].Error != nil {
			t.Fatal(resp, err)
		}
		return resp.Response.Results[0].Sandbox.Id
	}
	one, both := with("0"), with("01")
	file.add('0', "cache_damaged", 3)
	file.add('1', "read_failed", 1)
	file.add('1', "read_failed", 1)
	file.add('2', "read_failed", 1) // nobody's
	check := func(when string, id string, want map[string]int) {
		t.Helper()
		var got map[string]int
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if got = storeFaults(t, n, id); fmt.Sprint(got) == fmt.Sprint(want) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v, want %v", when, got, want)
			}
		}
	}
	check("one layer", one, map[string]int{"toolkit t0 cache_damaged": 3})
	check("two layers", both, map[string]int{"toolkit t0 cache_damaged": 3, "toolkit t1 read_failed": 2})

	n.Stop()
	file.add('0', "store_truncated", 2)
	n.Restart()
	check("after a restart", one, map[string]int{"toolkit t0 cache_damaged": 3, "toolkit t0 store_truncated": 2})
	check("after a restart", both, map[string]int{"toolkit t0 cache_damaged": 3, "toolkit t0 store_truncated": 2, "toolkit t1 read_failed": 2})

	// The last ones are recorded before the end is.
	file.add('0', "store_damaged", 1)
	if _, err := n.Sandboxes.StopSandbox(sandboxtest.Context(t), &dsecv1.StopSandboxRequest{SandboxId: one}); err != nil {
		t.Fatal(err)
	}
	if got := storeFaults(t, n, one); got["toolkit t0 store_damaged"] != 1 {
		t.Errorf("after its end: %v", got)
	}
}
