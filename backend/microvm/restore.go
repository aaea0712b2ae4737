package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/opendsec/dsec/backend/qemu"
	"github.com/opendsec/dsec/sandbox"
)

// maxState bounds a machine's state without its memory, bytes.
const maxState = 16 << 20

// ignoreShared leaves memory that is shared with a file out of a saved state.
var ignoreShared = map[string]any{"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}}}

// restore gives a QEMU that was started for it the state of a template; the machine stands still then.
func (i *instance) restore(ctx context.Context, state []byte) error {
	if err := i.query(ctx, "migrate-set-capabilities", ignoreShared, nil); err != nil {
		return err
	}
	return qemu.Load(ctx, monitor{i}, func(w io.Writer) error {
		_, err := w.Write(state)
		return err
	})
}

// monitor is the machine's, for what backends of machines share.
type monitor struct{ i *instance }

// Do implements qemu.Monitor.
func (m monitor) Do(ctx context.Context, command string, args, out any) error {
	return m.i.query(ctx, command, args, out)
}

// Pass implements qemu.Monitor.
func (m monitor) Pass(ctx context.Context, command string, args any, file *os.File) error {
	return m.i.pass(ctx, command, args, file)
}

// pass is query with a file that the command is about.
func (i *instance) pass(ctx context.Context, command string, args any, file *os.File) error {
	i.mu.Lock()
	m := i.monitor
	i.mu.Unlock()
	if m == nil {
		return errNoMonitor
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return m.Pass(ctx, command, args, file)
}

// awaitStatus waits for a status of the machine.
func (i *instance) awaitStatus(ctx context.Context, want func(string) bool) (string, error) {
	for {
		s, err := i.status(ctx)
		if err != nil || want(s) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("the machine is %s: %w", s, ctx.Err())
		case <-i.done:
			return s, fmt.Errorf("%w: QEMU has ended", sandbox.ErrUnavailable)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// suspend stops the machine, whose memory is shared with a file, and returns its state.
func (i *instance) suspend(ctx context.Context) (state []byte, err error) {
	if err := i.run(ctx, "stop"); err != nil {
		return nil, err
	}
	err = i.save(ctx, func(r io.Reader) (err error) {
		state, err = io.ReadAll(io.LimitReader(r, maxState+1))
		if len(state) > maxState {
			err = errors.New("the machine's state is too large")
		}
		return err
	})
	return state, err
}

// save makes QEMU tell the state of a machine that stands still, without its memory where that is a file's.
func (i *instance) save(ctx context.Context, take func(io.Reader) error) error {
	if err := i.query(ctx, "migrate-set-capabilities", ignoreShared, nil); err != nil {
		return err
	}
	return qemu.Save(ctx, monitor{i}, take)
}

// filling is what is in an empty disk's place: a node, and the set of the file that it reads.
type filling struct {
	node string
	set  int
}

// hand gives QEMU an open file, as /dev/fdset/SET.
func (i *instance) hand(ctx context.Context, set int, path string, writable bool) error {
	mode := os.O_RDONLY
	if writable {
		mode = os.O_RDWR
	}
	f, err := os.OpenFile(path, mode, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return i.pass(ctx, "add-fd", map[string]any{"fdset-id": set}, f)
}

// fill puts layers and the writable disk into the empty disks of a machine that stands still.
func (i *instance) fill(ctx context.Context, layers []layerFiles) error {
	i.fills++
	put := func(slot, path string, writable bool) error {
		node := fmt.Sprintf("%s-%d", slot, i.fills)
		i.handed++
		set := i.handed
		if err := i.hand(ctx, set, path, writable); err != nil {
			return fmt.Errorf("disk %s: %w", slot, err)
		}
		if err := i.query(ctx, "blockdev-add", blockNode(node, fmt.Sprintf("/dev/fdset/%d", set), writable), nil); err != nil {
			return fmt.Errorf("disk %s: %w", slot, err)
		}
		drive := map[string]any{"path": "/machine/peripheral/" + slot, "property": "drive", "value": node}
		if err := i.query(ctx, "qom-set", drive, nil); err != nil {
			return fmt.Errorf("disk %s: %w", slot, err)
		}
		old := i.filled[slot]
		i.filled[slot] = filling{node, set}
		if old.node == "" {
			return nil
		}
		if err := i.query(ctx, "blockdev-del", map[string]any{"node-name": old.node}, nil); err != nil {
			return err
		}
		return i.query(ctx, "remove-fd", map[string]any{"fdset-id": old.set}, nil)
	}
	for k, l := range layers {
		if err := put(metaSerial(k), l.meta, false); err != nil {
			return err
		}
		if l.data != "" {
			if err := put(dataSerial(k), l.data, false); err != nil {
				return err
			}
		}
	}
	return put(diskSerial, filepath.Join(i.d.dir(i.id), diskName), true)
}
