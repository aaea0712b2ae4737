package aether

import "github.com/opendsec/dsec/guest/wire"

// serve is the reader.
func (c *Conn) serve(h Handler) {
	c.fail(c.read(h))
	c.w.wait()
	h.Closed(c.reason())
}

func (c *Conn) read(h Handler) error {
	var buf []byte
	var out wire.Output
	for {
		f, p, err := c.readFrame(buf)
		if err != nil {
			return err
		}
		switch f.Kind {
		case wire.KindReply, wire.KindFail:
			c.answer(f, p)
		case wire.KindOutput:
			if err := out.Decode(p, out.Command); err != nil {
				return errProtocol
			}
			h.Output(out.Command, out.Offset, out.Stream, out.Data)
		case wire.KindExited, wire.KindSessionEnded:
			var m wire.Exited
			if m.Decode(p) != nil {
				return errProtocol
			}
			if f.Kind == wire.KindExited {
				h.Exited(m.Name, m.Exit)
			} else {
				h.SessionEnded(m.Name, m.Exit)
			}
		case wire.KindData, wire.KindCredit, wire.KindEnd:
			c.mu.Lock()
			s := c.streams[f.ID]
			c.mu.Unlock()
			if s != nil && !s.arrive(f.Kind, p) {
				return errProtocol
			}
		default:
			return errProtocol
		}
		if buf = p[:0]; cap(buf) > 64<<10 {
			buf = nil
		}
	}
}
