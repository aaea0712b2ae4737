package main

import (
	"errors"
	"sync/atomic"
	"testing"
)

func TestStoppingIsWaitedFor(t *testing.T) {
	var s stopping
	var ended atomic.Int32
	hold := make(chan struct{})
	broken := errors.New("broken")
	for i := range 10 {
		s.begin(func() error {
			<-hold
			ended.Add(1)
			if i == 3 {
				return broken
			}
			return nil
		})
	}
	close(hold)
	if err := s.wait(); !errors.Is(err, broken) || ended.Load() != 10 {
		t.Errorf("%d had ended, %v", ended.Load(), err)
	}
	if err := s.wait(); err != nil {
		t.Errorf("said again: %v", err)
	}
}
