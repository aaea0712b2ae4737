package fullvm_test

import (
	"time"

	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// Machines are emulated where there is no KVM, and boot beside others' tests.
func init() { sandboxtest.Timeout = 15 * time.Minute }
