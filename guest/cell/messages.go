package cell

import "encoding/binary"

// Append appends the message's content.
func (c *Config) Append(b []byte) []byte {
	b = appendBytes(b, c.Stage)
	b = binary.AppendUvarint(b, uint64(len(c.Layers)))
	for _, l := range c.Layers {
		b = appendBytes(appendBytes(b, l.Meta), l.Data)
	}
	for _, s := range []string{c.Cache, c.Groups.V2, c.Groups.Memory, c.Groups.Pids, c.Groups.CPU} {
		b = appendBytes(b, s)
	}
	return appendBytes(binary.AppendUvarint(b, uint64(c.UIDBase)), c.Filter)
}

func parseConfig(b []byte) (*Config, error) {
	r := &reader{b: b}
	c := &Config{Stage: r.string()}
	for n := r.count(); n > 0 && !r.bad; n-- {
		c.Layers = append(c.Layers, Layer{r.string(), r.string()})
	}
	for _, s := range []*string{&c.Cache, &c.Groups.V2, &c.Groups.Memory, &c.Groups.Pids, &c.Groups.CPU} {
		*s = r.string()
	}
	c.UIDBase, c.Filter = uint32(r.uint()), r.bytes()
	return c, r.end()
}

func (l *Limits) fields() []*int64 {
	return []*int64{&l.CPUMicros, &l.WallMicros, &l.Memory, &l.Pids, &l.Output, &l.Files, &l.FileBytes}
}

// Append appends the message's content.
func (c *Call) Append(b []byte) []byte {
	b = binary.AppendUvarint(b, c.ID)
	b = appendBytes(appendStrings(appendStrings(b, c.Argv), c.Env), c.Stdin)
	b = appendBytes(appendFiles(b, c.Files), c.Program)
	for _, v := range c.Limits.fields() {
		b = appendInts(b, *v)
	}
	return appendInts(appendStrings(b, c.Collect), c.CollectBytes)
}

// ParseCall reads what Append wrote.
func ParseCall(b []byte) (*Call, error) {
	r := &reader{b: b}
	c := &Call{ID: r.uint(), Argv: r.strings(), Env: r.strings(), Stdin: r.bytes(), Files: r.files(), Program: r.string()}
	for _, v := range c.Limits.fields() {
		*v = r.int()
	}
	c.Collect, c.CollectBytes = r.strings(), r.int()
	return c, r.end()
}

func flag(v bool, bit byte) byte {
	if v {
		return bit
	}
	return 0
}

// Append appends the message's content.
func (p *Reply) Append(b []byte) []byte {
	b = append(binary.AppendUvarint(b, p.ID), byte(p.End), flag(p.StdoutCut, 1)|flag(p.StderrCut, 2)|flag(p.DiskFull, 4))
	b = appendInts(b, p.Code, p.Signal, p.CPUMicros, p.WallMicros, p.MemoryPeak)
	return appendBytes(appendFiles(appendBytes(appendBytes(b, p.Stdout), p.Stderr), p.Files), p.Message)
}

// ParseReply reads what Append wrote; the reply refers to b.
func ParseReply(b []byte) (*Reply, error) {
	r := &reader{b: b}
	p := &Reply{ID: r.uint()}
	if len(r.b) < 2 {
		return nil, ErrMalformed
	}
	p.End = End(r.b[0])
	p.StdoutCut, p.StderrCut, p.DiskFull = r.b[1]&1 != 0, r.b[1]&2 != 0, r.b[1]&4 != 0
	r.b = r.b[2:]
	p.Code, p.Signal, p.CPUMicros, p.WallMicros, p.MemoryPeak = r.int(), r.int(), r.int(), r.int(), r.int()
	p.Stdout, p.Stderr, p.Files, p.Message = r.bytes(), r.bytes(), r.files(), r.string()
	return p, r.end()
}

// AppendNumber is the content of MsgWant (how many cells) and MsgCancel (a call's id).
func AppendNumber(v uint64) func([]byte) []byte {
	return func(b []byte) []byte { return binary.AppendUvarint(b, v) }
}

// AppendText is the content of MsgReady (what is wrong; nothing = ready) and MsgLog.
func AppendText(s string) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, s...) }
}
