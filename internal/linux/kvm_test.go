package linux

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestKVM: where guests run, so does the probe's; where they do not, it says that, and never that they do. A guest that
// stores something else, or does not halt, is told apart.
func TestKVM(t *testing.T) {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		t.Skip("no /dev/kvm")
	}
	err := TryKVM()
	t.Logf("%v", err)
	if err != nil && !errors.Is(err, ErrKVMBroken) {
		t.Skipf("no machine can be made: %v", err)
	}
	if err := runKVM(kvmReal, kvmTimeout); err != nil {
		t.Skipf("not even a guest in real mode: %v", err)
	}
	wrong := kvmReal
	wrong.result++
	if err := runKVM(wrong, kvmTimeout); !errors.Is(err, ErrKVMBroken) {
		t.Errorf("a guest that stores another value: %v", err)
	}
	if err := runKVM(kvmGuest{code: []byte{0xeb, 0xfe}}, 100*time.Millisecond); !errors.Is(err, ErrKVMBroken) { // jmp to itself
		t.Errorf("a guest that never halts: %v", err)
	}
	// lidt [0x1300], where zeros are; ud2
	if err := runKVM(kvmGuest{code: []byte{0x0f, 0x01, 0x1e, 0x00, 0x13, 0x0f, 0x0b}}, kvmTimeout); !errors.Is(err, ErrKVMBroken) {
		t.Errorf("a guest that faults: %v", err)
	}
}
