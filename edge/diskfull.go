package edge

import (
	"bytes"
	"context"
	"syscall"
	"time"

	"github.com/opendsec/dsec/guest/wire"
	"github.com/opendsec/dsec/sandbox"
)

// That a disk is full does not say that a command failed for it. A command that failed counts as having met the end of
// its disk when the disk is full at its end, exactly, and one of these holds:
//
//   - the disk was not known to be full before the command began: it, or what ran beside it, filled it;
//   - the end of its output says so, in the words of the C library;
//   - it was killed by a write to a mapped file that has no room (SIGBUS), or beyond a file's bound (SIGXFSZ).
//
// When the limit is not reached but what all sandboxes share is used up, the platform has promised more than it has:
// then only what the command itself shows counts, the second and third.
func (c *command) metFullDisk(x wire.Exit) (disk, pool bool) {
	own, shared := c.b.diskFull()
	b := c.b
	b.mu.Lock()
	during := b.fullFrom.IsZero() || c.public.StartedAt.AsTime().Before(b.fullFrom)
	switch {
	case !own:
		b.fullFrom = time.Time{}
	case b.fullFrom.IsZero():
		b.fullFrom = b.e.cfg.Clock.Wall()
	}
	b.mu.Unlock()
	if !own && !shared {
		return false, false
	}
	met := own && during || endsByFullDisk(x) || c.saysDiskFull()
	return met && own, met && shared
}

// diskFull tells whether the sandbox has used up its disk, or all have used up what they share.
func (b *box) diskFull() (own, shared bool) {
	_, inst, err := b.channel()
	if err != nil {
		return false, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if m, ok := inst.(sandbox.DiskMeter); ok {
		own, shared, err := m.DiskFull(ctx)
		return err == nil && own, err == nil && shared
	}
	s, err := inst.Stats(ctx)
	if err != nil || s.DiskLimitBytes <= 0 {
		return false, false
	}
	return s.DiskLimitBytes-s.DiskBytes < max(256<<10, s.DiskLimitBytes/256), false
}

// endsByFullDisk tells of the signals by which the kernel ends who writes where there is no room, also as a shell
// passes them on.
func endsByFullDisk(x wire.Exit) bool {
	for _, s := range []syscall.Signal{syscall.SIGBUS, syscall.SIGXFSZ} {
		if x.Signal == int32(s) || x.Code == 128+int32(s) {
			return true
		}
	}
	return false
}

// diskWords is how the C library, and so nearly every program, speaks of ENOSPC and EDQUOT.
var diskWords = [][]byte{[]byte("No space left on device"), []byte("no space left on device"), []byte("isk quota exceeded")}

// lastWords is how much of a command's output is searched.
const lastWords = 16 << 10

// saysDiskFull tells whether the end of the command's output speaks of a full disk.
func (c *command) saysDiskFull() bool {
	r := c.b.log.Reader(c.order, c.b.log.OutputEnd(c.order)-lastWords)
	pieces, err := r.Read(lastWords)
	if err != nil {
		return false
	}
	var text []byte
	for _, p := range pieces {
		text = append(text, p.Data...)
	}
	for _, w := range diskWords {
		if bytes.Contains(text, w) {
			return true
		}
	}
	return false
}
