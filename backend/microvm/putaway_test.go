package microvm_test

import (
	"testing"

	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestPutAway: paused machines without QEMU, of those that were booted and those that were ready.
func TestPutAway(t *testing.T) {
	slow(t)
	sandboxtest.RunPutAway(t, factory(t))
}
