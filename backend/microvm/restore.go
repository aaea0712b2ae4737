package microvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/opendsec/dsec/sandbox"
)

// stateFile is what QEMU calls the file that its state goes through.
const stateFile = "state"

// maxState bounds a machine's state without its memory, bytes.
const maxState = 16 << 20

// ignoreShared leaves memory that is shared with a file out of a saved state.
var ignoreShared = map[string]any{"capabilities": []any{map[string]any{"capability": "x-ignore-shared", "state": true}}}

// restore gives a QEMU that was started for it the state of a template; the machine stands still then.
func (i *instance) restore(ctx context.Context, state []byte) error {
	if err := i.query(ctx, "migrate-set-capabilities", ignoreShared, nil); err != nil {
		return err
	}
	// Nobody is to be told that a hardware address has moved.
	if err := i.query(ctx, "migrate-set-parameters", map[string]any{"announce-rounds": 0}, nil); err != nil {
		return err
	}
	nc, err := i.statePipe(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := i.query(ctx, "migrate-incoming", map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		return err
	}
	_ = nc.SetDeadline(time.Now().Add(writeLimit))
	_, err = nc.Write(state)
	if err = errors.Join(err, nc.Close()); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	_, err = i.awaitStatus(ctx, func(s string) bool { return s != "inmigrate" })
	return err
}

// statePipe hands QEMU one end of a connection for its state, and returns the other.
func (i *instance) statePipe(ctx context.Context) (net.Conn, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	theirs, ours := os.NewFile(uintptr(fds[0]), "state"), os.NewFile(uintptr(fds[1]), "state")
	defer theirs.Close()
	nc, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, err
	}
	if err := i.pass(ctx, "getfd", map[string]any{"fdname": stateFile}, theirs); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
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

// unbounded is the rate at which a machine is saved, bytes a second.
const unbounded = 1 << 40

// save makes QEMU tell the state of a machine that stands still. What take leaves unread makes it fail.
func (i *instance) save(ctx context.Context, take func(io.Reader) error) error {
	if err := i.query(ctx, "migrate-set-capabilities", ignoreShared, nil); err != nil {
		return err
	}
	if err := i.query(ctx, "migrate-set-parameters", map[string]any{"max-bandwidth": int64(unbounded)}, nil); err != nil {
		return err
	}
	nc, err := i.statePipe(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := i.query(ctx, "migrate", map[string]any{"uri": "fd:" + stateFile}, nil); err != nil {
		return err
	}
	stopRead := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stopRead()
	if err := take(nc); err != nil {
		return err
	}
	var m struct {
		Status string `json:"status"`
		Desc   string `json:"error-desc"`
	}
	for m.Status != "completed" {
		if err := i.query(ctx, "query-migrate", nil, &m); err != nil {
			return err
		}
		if m.Status == "failed" || m.Status == "cancelled" {
			return fmt.Errorf("save the machine: %s", m.Desc)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
	return nil
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
