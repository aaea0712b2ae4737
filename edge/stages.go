package edge

import (
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// stages counts how long each stage of work took, in histograms of eight buckets per doubling: quantiles are
// right to within a tenth.
type stages struct {
	mu    sync.Mutex
	by    map[string]*histogram
	order []string
}

type histogram struct {
	count   int64
	buckets [8 * 40]int64
}

func newStages() *stages { return &stages{by: map[string]*histogram{}} }

// took adds the time since start to a stage and returns the time now, where the next stage begins.
func (s *stages) took(stage string, start time.Time) time.Time {
	now := time.Now()
	s.add(stage, now.Sub(start))
	return now
}

// add counts one passage of a stage that took d.
func (s *stages) add(stage string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.by[stage]
	if h == nil {
		h = new(histogram)
		s.by[stage] = h
		s.order = append(s.order, stage)
	}
	h.count++
	h.buckets[bucketOf(d)]++
}

func bucketOf(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < 8 {
		return int(us)
	}
	n := bits.Len64(us) // at least 4
	i := 8*(n-3) + int(us>>(n-4)) - 8
	return min(i, 8*40-1)
}

// middle of a bucket, in microseconds.
func middle(i int) float64 {
	if i < 8 {
		return float64(i)
	}
	return (float64(i%8) + 8.5) * math.Exp2(float64(i/8-1))
}

func (h *histogram) quantile(q float64) float64 {
	rank := int64(math.Ceil(q * float64(h.count)))
	for i, n := range h.buckets {
		if rank -= n; rank <= 0 {
			return middle(i)
		}
	}
	return 0
}

func (s *stages) costs() []*dsecv1.StageCost {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*dsecv1.StageCost
	for _, name := range slices.Sorted(slices.Values(s.order)) {
		h := s.by[name]
		out = append(out, &dsecv1.StageCost{Stage: name, Count: h.count, P50Usec: h.quantile(0.5), P99Usec: h.quantile(0.99)})
	}
	return out
}
