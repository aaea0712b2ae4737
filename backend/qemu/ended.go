package qemu

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// exitWait bounds what is waited for whoever waits for a QEMU: its parent, or the first process of the node.
const exitWait = 100 * time.Millisecond

// HowEnded tells how a QEMU ended, where the kernel tells: " by signal 9 (killed)"; p is its descriptor.
func HowEnded(p *os.File) string {
	if p == nil {
		return ""
	}
	for deadline := time.Now().Add(exitWait); ; time.Sleep(time.Millisecond) {
		st, err := linux.ExitStatus(p)
		switch {
		case err == nil && st.Signaled():
			return fmt.Sprintf(" by signal %d (%v)", st.Signal(), st.Signal())
		case err == nil:
			return fmt.Sprintf(" with %d", st.ExitStatus())
		case time.Now().After(deadline):
			return ""
		}
	}
}

// EndedBy is the signal that a QEMU ended by; 0 for none, or where the kernel does not tell.
func EndedBy(p *os.File) syscall.Signal {
	if p == nil {
		return 0
	}
	if st, err := linux.ExitStatus(p); err == nil && st.Signaled() {
		return st.Signal()
	}
	return 0
}
