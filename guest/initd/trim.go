package initd

import (
	"runtime"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// A sandbox mostly waits. When nothing was asked of it for trimAfter, dsec-init gives back what its work left.
const (
	trimAfter    = 2 * time.Second
	collectAbove = 768 << 10 // bytes of heap that are resident
)

// worked notes that something was asked.
func (i *Init) worked() {
	i.busy = true
	if i.trimmer.index == 0 {
		i.timers.set(&i.trimmer, trimAfter, i.trim)
	}
}

func (i *Init) trim() {
	if i.busy {
		i.busy = false
		i.timers.set(&i.trimmer, trimAfter, i.trim)
		return
	}
	// More than a page of each was needed by bulk only.
	_ = unix.Madvise(i.scratch, unix.MADV_DONTNEED)
	if c := i.current; c != nil {
		if c.in != nil && c.r == c.w {
			_ = unix.Madvise(c.in, unix.MADV_DONTNEED)
		}
		if len(c.out) == 0 {
			c.out = nil
		}
	}
	// A first collection costs half a megabyte for the collector itself: only where there is more to win.
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapSys-m.HeapReleased > collectAbove {
		i.users.Forget()
		debug.FreeOSMemory()
	}
}
