package container

import "os"

// watchShell follows a ready shell's process: one that dies before it is used is removed and replaced.
func (d *Driver) watchShell(w *warm, sh *shell) error {
	return d.watch.Add(sh.pidfd, func() {
		go func() { // the watcher's goroutine must not wait
			if !w.discard(sh) {
				return // taken meanwhile: its owner sees the channel close
			}
			d.log.Warn("a ready shell ended by itself", "id", sh.id, "said", d.lastWords(sh.id))
			slot := sh.slot
			if err := d.removeParts(sh); err != nil {
				d.log.Error("parts of a dead shell are left for the next sweep", "id", sh.id, "err", err)
				return
			}
			d.slots.release(slot)
		}()
	})
}

// adopt makes fn the one that hears of the process's end; if it has ended already, fn is called at once.
func (d *Driver) adopt(pidfd *os.File, fn func()) {
	d.watch.Remove(pidfd)
	if err := d.watch.Add(pidfd, fn); err != nil {
		d.log.Error("cannot watch a container", "err", err)
		go fn()
	}
}

func (d *Driver) forget(pidfd *os.File) {
	if d.watch != nil {
		d.watch.Remove(pidfd)
	}
}
