package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// adopt learns from the maps what an earlier process did.
func (e *engine) adopt() error {
	used := map[uint32]int{}
	var last uint32
	numbers := make([]uint32, len(e.slots))
	var n uint32
	var rec wireRecord
	it := e.k.Records.Iterate()
	for it.Next(&n, &rec) {
		if int(n) >= len(e.slots) {
			continue
		}
		s := &e.slots[n]
		s.rec = rec
		last = max(last, rec.Token[0], rec.Token[1])
		word := e.k.current.Load(int(n))
		if rec.Port == 0 || word == 0 {
			continue
		}
		if token := uint32(word >> 32); token == rec.Token[1] {
			s.rec.Generation[0], s.rec.Token[0] = rec.Generation[1], token // it was killed before it could note this
		}
		s.rec.Generation[1], s.rec.Token[1] = 0, 0
		numbers[n] = uint32(word)
		used[numbers[n]]++
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	lists, counts := map[uint32]bool{}, map[uint32]int{}
	err := each(e.k.Learned, func(k wireLearnedKey, w *wireLearned) {
		last = max(last, k.Token)
		counts[k.Token]++
		for _, l := range w.List {
			lists[l] = true
		}
	})
	if err != nil {
		return fmt.Errorf("read learned addresses: %w", err)
	}
	e.token.Store(last)
	if err := e.store.adopt(used, lists); err != nil {
		return err
	}
	for i := range e.slots {
		s := &e.slots[i]
		if s.rec.Port == 0 {
			continue
		}
		s.learned[0] = counts[s.rec.Token[0]]
		if numbers[i] != 0 {
			if s.policy = e.store.byNumber[numbers[i]]; s.policy == nil {
				return fmt.Errorf("slot %d has a policy that is gone", i)
			}
		}
	}
	return nil
}

// removeOthers removes what other versions pinned.
func (k *kernel) removeOthers(dir string) error {
	mine, err := k.Ports.Info()
	if err != nil {
		return err
	}
	id, _ := mine.ID()
	all, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, d := range all {
		if !d.IsDir() {
			continue // the kernel itself puts some there
		}
		path := filepath.Join(dir, d.Name())
		m, err := ebpf.LoadPinnedMap(filepath.Join(path, "ports"), nil)
		if err == nil {
			info, ierr := m.Info()
			m.Close()
			if ierr != nil {
				return ierr
			}
			if other, _ := info.ID(); other == id {
				continue
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}
