package fncall

import "sync"

// share is an amount that is taken from and given back, by one project no more than half of it: what one takes for long
// must not be all that there is.
type share struct {
	most int64

	mu    sync.Mutex
	taken int64
	of    map[string]int64 // by project
}

func newShare(most int64) *share { return &share{most: most, of: map[string]int64{}} }

// take takes n for a project; false = there is not so much left.
func (s *share) take(project string, n int64) (release func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken+n > s.most || s.of[project]+n > s.most/2 {
		return nil, false
	}
	s.taken += n
	s.of[project] += n
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken -= n
		if s.of[project] -= n; s.of[project] == 0 {
			delete(s.of, project)
		}
	}, true
}
