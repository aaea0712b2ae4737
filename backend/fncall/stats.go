package fncall

import (
	"slices"
	"sync"
	"time"

	"github.com/opendsec/dsec/guest/cell"
)

// stats counts what calls of a runtime came to.
type stats struct {
	mu      sync.Mutex
	calls   int64
	ends    map[cell.End]int64
	hits    int64 // compiled programs that were in the cache
	refused int64 // calls that found the line full
	cpu     time.Duration
	last    []time.Duration // of the latest calls, worker included
	at      int
}

const latest = 512

func (s *stats) add(p *cell.Reply, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.ends == nil {
		s.ends = map[cell.End]int64{}
	}
	s.ends[p.End]++
	s.cpu += time.Duration(p.CPUMicros) * time.Microsecond
	if len(s.last) < latest {
		s.last = append(s.last, took)
	} else {
		s.last[s.at] = took
		s.at = (s.at + 1) % latest
	}
}

func (s *stats) cached() {
	s.mu.Lock()
	s.hits++
	s.mu.Unlock()
}

func (s *stats) refuse() {
	s.mu.Lock()
	s.refused++
	s.mu.Unlock()
}

// RuntimeInfo is a runtime as an operator sees it.
type RuntimeInfo struct {
	Name, Base string
	Running    bool // it has a worker
	Cells      int
	Calls      int64
	TimedOut   int64
	Broken     int64 // the platform's fault
	CacheHits  int64
	Refused    int64
	CPU        time.Duration
	P50, P99   time.Duration // of the latest calls, waiting in line left out
	Waiting    int           // in line, of all runtimes
}

// Runtimes lists all runtimes that there can be, with those that have no base.
func (s *Service) Runtimes() []RuntimeInfo {
	var out []RuntimeInfo
	for _, d := range builtin {
		s.mu.Lock()
		r, base := s.runtimes[d.Name], s.cfg.Bases[d.Name]
		s.mu.Unlock()
		info := RuntimeInfo{Name: d.Name, Base: base, Waiting: s.line.length()}
		if r != nil {
			r.mu.Lock()
			if info.Running = r.worker != nil; info.Running {
				r.worker.mu.Lock()
				info.Cells = r.worker.slots
				r.worker.mu.Unlock()
			}
			r.mu.Unlock()
			r.stat.fill(&info)
		}
		out = append(out, info)
	}
	return out
}

func (s *stats) fill(info *RuntimeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info.Calls, info.CacheHits, info.Refused, info.CPU = s.calls, s.hits, s.refused, s.cpu
	info.TimedOut = s.ends[cell.CPUTime] + s.ends[cell.WallTime]
	info.Broken = s.ends[cell.Broken]
	if len(s.last) > 0 {
		l := slices.Sorted(slices.Values(s.last))
		info.P50, info.P99 = l[len(l)/2], l[len(l)*99/100]
	}
}
