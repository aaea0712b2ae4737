package wire

// Append appends the payload.
func (m *Started) Append(b []byte) []byte { return appendInt(b, int64(m.PID)) }

// Decode reads the payload.
func (m *Started) Decode(p []byte) error {
	r := reader{b: p}
	m.PID = r.int32()
	return r.end("start reply")
}

// Append appends the payload.
func (m *Exit) Append(b []byte) []byte {
	b = appendInt(b, int64(m.Code))
	b = appendInt(b, int64(m.Signal))
	b = appendInt(b, m.OutputEnd)
	b = appendInt(b, m.DurationMicros)
	var flags byte
	for i, f := range []bool{m.TimedOut, m.Killed, m.SessionEnded} {
		if f {
			flags |= 1 << i
		}
	}
	return append(b, flags)
}

func (m *Exit) read(r *reader) {
	m.Code = r.int32()
	m.Signal = r.int32()
	m.OutputEnd = r.int()
	m.DurationMicros = r.int()
	flags := r.byte()
	m.TimedOut, m.Killed, m.SessionEnded = flags&1 != 0, flags&2 != 0, flags&4 != 0
	if flags > 7 || m.OutputEnd < 0 {
		r.fail()
	}
}

// Exited is the payload of Exited and SessionEnded frames.
type Exited struct {
	Name string
	Exit Exit
}

// Append appends the payload.
func (m *Exited) Append(b []byte) []byte { return m.Exit.Append(appendString(b, m.Name)) }

// Decode reads the payload.
func (m *Exited) Decode(p []byte) error {
	r := reader{b: p}
	m.Name = r.name()
	m.Exit.read(&r)
	return r.end("exit")
}

// Output is the payload of an Output frame. Data is part of the decoded payload.
type Output struct {
	Command string
	Offset  int64
	Stream  Stream
	Data    []byte
}

// AppendHead appends all but the data, which follows.
func (m *Output) AppendHead(b []byte) []byte {
	b = appendString(b, m.Command)
	b = appendInt(b, m.Offset)
	return append(b, byte(m.Stream))
}

// Decode reads the payload. Command and Data refer to it: the name as bytes, so that the hot path makes no
// string.
func (m *Output) decode(p []byte) (name []byte, err error) {
	r := reader{b: p}
	name = r.bytes(MaxName)
	m.Offset = r.int()
	m.Stream = Stream(r.byte())
	if r.bad || len(r.b) > MaxData || m.Offset < 0 || m.Offset > 1<<62 || m.Stream < Stdout || m.Stream > Terminal {
		return nil, errMalformed("output")
	}
	m.Data = r.b
	return name, nil
}

// Decode reads the payload; Data refers to it. names, when not nil, holds command names already made.
func (m *Output) Decode(p []byte, known string) error {
	name, err := m.decode(p)
	if err != nil {
		return err
	}
	if string(name) == known { // does not allocate
		m.Command = known
	} else {
		m.Command = string(name)
	}
	return nil
}

// AppendStatuses appends the reply to List.
func AppendStatuses(b []byte, l []CommandStatus) []byte {
	b = appendUint(b, uint64(len(l)))
	for i := range l {
		s := &l[i]
		b = appendString(b, s.ID)
		b = appendInt(b, int64(s.PID))
		b = appendString(b, s.Session)
		b = appendBool(b, s.Ended)
		b = s.Exit.Append(b)
		b = appendInt(b, s.Buffered)
		b = appendInt(b, s.End)
	}
	return b
}

// DecodeStatuses reads the reply to List.
func DecodeStatuses(p []byte) ([]CommandStatus, error) {
	r := reader{b: p}
	n := r.uint()
	if n > uint64(len(r.b)) || n > MaxStrings {
		return nil, errMalformed("command list")
	}
	var l []CommandStatus
	for ; n > 0 && !r.bad; n-- {
		var s CommandStatus
		s.ID = r.name()
		s.PID = r.int32()
		s.Session = r.name()
		s.Ended = r.bool()
		s.Exit.read(&r)
		s.Buffered = r.int()
		s.End = r.int()
		if s.Buffered < 0 || s.End < s.Buffered {
			r.fail()
		}
		l = append(l, s)
	}
	return l, r.end("command list")
}

// Append appends the payload.
func (m *FileInfo) Append(b []byte) []byte { return appendAttrs(m.append(b), m.Attrs) }

func (m *FileInfo) append(b []byte) []byte {
	b = appendString(b, m.Path)
	b = appendUint(b, uint64(m.Mode))
	b = appendUint(b, uint64(m.UID))
	b = appendUint(b, uint64(m.GID))
	b = appendInt(b, m.Size)
	b = appendInt(b, m.MtimeNS)
	return appendString(b, m.Target)
}

func (m *FileInfo) read(r *reader) {
	m.Path = r.string(2 * MaxPath)
	m.Mode = r.uint32()
	m.UID = r.uint32()
	m.GID = r.uint32()
	m.Size = r.int()
	m.MtimeNS = r.int()
	m.Target = r.path()
	if m.Size < 0 {
		r.fail()
	}
}

// Decode reads the payload.
func (m *FileInfo) Decode(p []byte) error {
	r := reader{b: p}
	m.read(&r)
	m.Attrs = r.attrs()
	return r.end("file")
}

// AppendFiles appends the reply to ListDir.
func AppendFiles(b []byte, l []FileInfo, truncated bool) []byte {
	b = appendBool(b, truncated)
	b = appendUint(b, uint64(len(l)))
	for i := range l {
		b = l[i].append(b)
	}
	for i := range l { // a place and what is there, of those that have any
		if len(l[i].Attrs) > 0 {
			b = appendAttrs(appendUint(b, uint64(i)), l[i].Attrs)
		}
	}
	return b
}

// DecodeFiles reads the reply to ListDir.
func DecodeFiles(p []byte) (l []FileInfo, truncated bool, err error) {
	r := reader{b: p}
	truncated = r.bool()
	n := r.uint()
	if n > uint64(len(r.b)) {
		return nil, false, errMalformed("directory")
	}
	for ; n > 0 && !r.bad; n-- {
		var f FileInfo
		f.read(&r)
		l = append(l, f)
	}
	for next := uint64(0); !r.bad && len(r.b) > 0; {
		i := r.uint()
		if r.bad || i < next || i >= uint64(len(l)) || len(r.b) == 0 {
			return nil, false, errMalformed("directory")
		}
		l[i].Attrs, next = r.attrs(), i+1
	}
	return l, truncated, r.end("directory")
}

// Append appends the payload of a Fail, and of an End that carries an error.
func (e *Error) Append(b []byte) []byte {
	msg := e.Message
	if len(msg) > MaxPath {
		msg = msg[:MaxPath]
	}
	return appendString(append(b, byte(e.Code)), msg)
}

// DecodeError reads the payload of a Fail. Unknown codes become CodeInternal.
func DecodeError(p []byte) *Error {
	r := reader{b: p}
	e := &Error{Code: Code(r.byte())}
	e.Message = r.path()
	if r.end("error") != nil || e.Code > codeLast {
		return &Error{Code: CodeInternal, Message: "malformed error from the sandbox"}
	}
	return e
}

// AppendCredit appends the payload of a Credit.
func AppendCredit(b []byte, n int) []byte { return appendUint(b, uint64(n)) }

// DecodeCredit reads the payload of a Credit.
func DecodeCredit(p []byte) (int, error) {
	r := reader{b: p}
	n := r.uint32()
	if n > Window {
		r.fail()
	}
	return int(n), r.end("credit")
}
