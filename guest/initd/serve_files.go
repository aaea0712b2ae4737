package initd

import (
	"strings"

	"github.com/opendsec/dsec/guest/files"
	"github.com/opendsec/dsec/guest/users"
	"github.com/opendsec/dsec/guest/wire"
)

// maxFileStreams bounds the streams that occupy a worker, so that short operations always find one.
const maxFileStreams = maxWorkers - 8

// serveFiles serves file operations and ports.
func (i *Init) serveFiles(c *conn, h wire.Header, p []byte) error {
	if !i.claimed {
		return &wire.Error{Code: wire.CodeWrongState, Message: "the shell has no environment yet"}
	}
	if c.streams[h.ID] != nil {
		c.close() // the id is in use
		return nil
	}
	if h.Kind == wire.KindDial {
		var m wire.Control
		if err := m.Decode(p); err != nil {
			return err
		}
		return i.dial(c, h.ID, m.Value)
	}
	var m wire.Path
	var w wire.OpenWrite
	if h.Kind == wire.KindOpenWrite {
		if err := w.Decode(p); err != nil {
			return err
		}
		m.Path, m.User = w.Path, w.User
	} else if err := m.Decode(p); err != nil {
		return err
	}
	if err := files.Check(m.Path); err != nil {
		return err
	}
	spec := m.User
	if spec == "" {
		spec = i.claim.User
	}
	op := &fileOp{c: c, id: h.ID, kind: h.Kind, m: m, w: w, user: spec, workdir: i.claim.Workdir}
	switch h.Kind {
	case wire.KindOpenRead, wire.KindOpenWrite, wire.KindOpenTar, wire.KindUnpack:
		if i.fileStreams >= maxFileStreams {
			return &wire.Error{Code: wire.CodeExhausted, Message: "too many files are open for transfer in this sandbox; try again"}
		}
		op.s = c.newStream(h.ID, false)
		i.fileStreams++
	case wire.KindWatch:
		if err := i.watching.newWatch(op); err != nil {
			return err
		}
	}
	if !i.workers.do(op.run) {
		if op.s != nil {
			i.fileStreams--
			op.s.abandon()
			delete(c.streams, h.ID)
		}
		if op.watch != nil {
			op.watch.s.abandon()
		}
		return errBusy
	}
	return nil
}

// fileOp is one request, carried out on a worker.
type fileOp struct {
	c       *conn
	id      uint32
	kind    wire.Kind
	m       wire.Path
	w       wire.OpenWrite
	user    string
	workdir string
	s       *stream // of the kinds that transfer
	watch   *watch  // of Watch
}

// run is called on a worker.
func (op *fileOp) run() {
	// The thread goes back to what it was, for the next one's look at /etc/passwd.
	defer files.Become(0, 0, nil)
	u, err := users.Lookup(op.user)
	if err != nil {
		err = &wire.Error{Code: wire.CodeNoUser, Message: "user " + op.user + ": " + err.Error()}
	} else {
		err = files.Become(u.UID, u.GID, u.Groups)
	}
	if err == nil {
		op.m.Path = op.absolute(op.m.Path, &u)
		if op.s != nil {
			err = op.transfer(&u)
		} else if op.watch != nil {
			err = op.watch.begin(op)
		} else {
			err = op.simple(&u)
		}
	}
	op.c.i.call(func() {
		if op.s != nil {
			op.c.i.fileStreams--
		}
		if op.watch != nil && err != nil {
			op.watch.of.mu.Lock()
			op.watch.end(toWire(err))
			op.watch.of.mu.Unlock()
		} else if err != nil && op.s == nil {
			op.c.fail(op.id, toWire(err))
		}
	})
	if op.s == nil || err == nil {
		return
	}
	op.refuse(toWire(err))
}

// refuse answers a transfer that could not begin.
func (op *fileOp) refuse(err *wire.Error) {
	op.c.i.call(func() {
		op.s.mu.Lock()
		if !op.s.gone {
			op.s.forget()
			op.c.fail(op.id, err)
		}
		op.s.mu.Unlock()
	})
}

// absolute makes relative paths start where commands do.
func (op *fileOp) absolute(path string, u *users.User) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	base := op.workdir
	if base == "" {
		base = u.Home
	}
	return strings.TrimRight(base, "/") + "/" + path
}

func (op *fileOp) reply(payload func([]byte) []byte) {
	op.c.i.call(func() { op.c.reply(op.id, payload) })
}

// simple carries out what has one answer.
func (op *fileOp) simple(u *users.User) error {
	m := &op.m
	switch op.kind {
	case wire.KindStat:
		f, err := files.Stat(m.Path, m.Follow, m.Mode != 0)
		if err != nil {
			return err
		}
		op.reply(f.Append)
		return nil
	case wire.KindListDir:
		l, truncated, err := files.List(m.Path, int(m.Depth), int(m.Max), m.Mode != 0)
		if err != nil {
			return err
		}
		op.reply(func(b []byte) []byte { return wire.AppendFiles(b, l, truncated) })
		return nil
	case wire.KindMkdir:
		if err := files.Mkdir(m.Path, m.Follow, m.Mode); err != nil {
			return err
		}
	case wire.KindRename:
		if err := files.Check(m.To); err != nil {
			return err
		}
		if err := files.Rename(m.Path, op.absolute(m.To, u)); err != nil {
			return err
		}
	case wire.KindRemove:
		if err := files.Remove(m.Path, m.Follow, m.Force, nil); err != nil {
			return err
		}
	}
	op.reply(nil)
	return nil
}

// transfer carries out a stream. An error returned comes before the answer; a later one ends the stream.
func (op *fileOp) transfer(u *users.User) error {
	s := op.s
	switch op.kind {
	case wire.KindOpenRead:
		if op.m.Offset < 0 {
			return &wire.Error{Code: wire.CodeInvalid, Message: "an offset must not be negative"}
		}
		f, err := files.OpenRead(op.m.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		op.reply(f.Info.Append)
		op.finish(f.Copy(s, op.m.Offset, op.m.Length))
	case wire.KindOpenTar:
		if _, err := files.Stat(op.m.Path, true, false); err != nil {
			return err
		}
		op.reply(nil)
		op.finish(files.Pack(op.m.Path, s))
	case wire.KindUnpack:
		op.reply(nil)
		op.finish(files.Unpack(op.m.Path, s))
	case wire.KindOpenWrite:
		var owner *files.Owner
		if op.w.Owner != "" {
			o, err := users.Lookup(op.w.Owner)
			if err != nil {
				return &wire.Error{Code: wire.CodeNoUser, Message: "owner " + op.w.Owner + ": " + err.Error()}
			}
			owner = &files.Owner{UID: o.UID, GID: o.GID}
		}
		t, err := files.OpenWrite(op.m.Path, op.w.Mode, owner, op.w.Parents)
		if err != nil {
			return err
		}
		defer t.Abort()
		if err := t.Mark(op.w.Attrs); err != nil {
			return err
		}
		op.reply(nil)
		if err = t.Fill(s); err == nil {
			err = t.Commit()
		}
		op.finish(err)
	}
	return nil
}

// finish ends the stream after all that was written to it.
func (op *fileOp) finish(err error) {
	if err == nil {
		op.s.end(nil)
	} else if err != errGone {
		op.s.end(toWire(err))
	}
}
