package main

import (
	"errors"
	"sync"
)

// stopping owns the goroutines that stop sandboxes beside the measuring: wait waits for all of them and tells what
// went wrong. The zero value is ready.
type stopping struct {
	wg   sync.WaitGroup
	mu   sync.Mutex
	errs []error
}

// begin starts one.
func (s *stopping) begin(stop func() error) {
	s.wg.Go(func() {
		if err := stop(); err != nil {
			s.mu.Lock()
			s.errs = append(s.errs, err)
			s.mu.Unlock()
		}
	})
}

// wait returns when all that were begun have ended, with their errors since the last wait.
func (s *stopping) wait() error {
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := errors.Join(s.errs...)
	s.errs = nil
	return err
}
