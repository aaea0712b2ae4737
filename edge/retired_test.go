package edge

import (
	"slices"
	"testing"
	"time"
)

// TestRetiredInOrder: the oldest are the ones to be forgotten, in whatever order their ends come in.
func TestRetiredInOrder(t *testing.T) {
	e := &Edge{cfg: Config{RetainMax: 10}}
	var boxes []*box
	for n := range 5 {
		boxes = append(boxes, &box{endedAt: time.Unix(int64(n/2), 0)}) // some at the same time
	}
	for _, n := range []int{2, 3, 0, 4, 1} {
		e.retire(boxes[n])
	}
	if !slices.Equal(e.retired, boxes) {
		t.Errorf("not in the order of their ends: %v", e.retired)
	}
}
