package wire

import "math"

// Append and Decode of the requests that carry a struct. Decode copies: nothing refers to the payload after.

// Append appends the payload.
func (m *Claim) Append(b []byte) []byte {
	b = appendString(b, m.Hostname)
	b = appendStrings(b, m.Env)
	b = appendString(b, m.User)
	b = appendString(b, m.Workdir)
	b = appendBool(b, m.NoNewPrivileges)
	b = appendInt(b, m.ShmBytes)
	return appendString(b, string(m.Seed))
}

// Decode reads the payload.
func (m *Claim) Decode(p []byte) error {
	r := reader{b: p}
	m.Hostname = r.name()
	m.Env = r.strings()
	m.User = r.name()
	m.Workdir = r.path()
	m.NoNewPrivileges = r.bool()
	m.ShmBytes = r.int()
	m.Seed = append([]byte(nil), r.bytes(MaxName)...)
	return r.end("claim")
}

// Append appends the payload.
func (m *Start) Append(b []byte) []byte {
	b = appendString(b, m.ID)
	b = appendStrings(b, m.Argv)
	b = appendString(b, m.Shell)
	b = appendStrings(b, m.Env)
	b = appendString(b, m.Cwd)
	b = appendString(b, m.User)
	b = appendBool(b, m.Stdin)
	b = appendInt(b, m.TimeoutMillis)
	b = appendUint(b, uint64(m.Columns))
	b = appendUint(b, uint64(m.Rows))
	b = appendBool(b, m.Terminal)
	return appendString(b, m.Session)
}

// Decode reads the payload.
func (m *Start) Decode(p []byte) error {
	r := reader{b: p}
	m.ID = r.name()
	m.Argv = r.strings()
	m.Shell = r.string(MaxFrame)
	m.Env = r.strings()
	m.Cwd = r.path()
	m.User = r.name()
	m.Stdin = r.bool()
	m.TimeoutMillis = r.int()
	m.Columns = r.uint16()
	m.Rows = r.uint16()
	m.Terminal = r.bool()
	m.Session = r.name()
	return r.end("start")
}

// Append appends the payload.
func (m *OpenSession) Append(b []byte) []byte {
	b = appendString(b, m.ID)
	b = appendString(b, m.User)
	b = appendString(b, m.Cwd)
	return appendStrings(b, m.Env)
}

// Decode reads the payload.
func (m *OpenSession) Decode(p []byte) error {
	r := reader{b: p}
	m.ID = r.name()
	m.User = r.name()
	m.Cwd = r.path()
	m.Env = r.strings()
	return r.end("session")
}

// Append appends the payload.
func (m *OpenWrite) Append(b []byte) []byte {
	b = appendString(b, m.Path)
	b = appendString(b, m.User)
	b = appendUint(b, uint64(m.Mode))
	b = appendString(b, m.Owner)
	return appendAttrs(appendBool(b, m.Parents), m.Attrs)
}

// Decode reads the payload.
func (m *OpenWrite) Decode(p []byte) error {
	r := reader{b: p}
	m.Path = r.path()
	m.User = r.name()
	m.Mode = r.uint32()
	m.Owner = r.string(2*MaxName + 1)
	m.Parents = r.bool()
	m.Attrs = r.attrs()
	return r.end("write request")
}

// Hello opens a connection.
type Hello struct {
	Version uint32
	Epoch   uint64
}

// Append appends the payload.
func (m *Hello) Append(b []byte) []byte {
	return appendUint(appendUint(b, uint64(m.Version)), m.Epoch)
}

// Decode reads the payload.
func (m *Hello) Decode(p []byte) error {
	r := reader{b: p}
	m.Version = r.uint32()
	m.Epoch = r.uint()
	return r.end("hello")
}

// Path is the payload of the requests on one or two paths; which fields mean something depends on the kind.
type Path struct {
	Path, To string
	User     string
	Mode     uint32 // Mkdir: permission bits; Stat, ListDir: not 0 = with attributes
	Depth    int32
	Max      int32
	Offset   int64
	Length   int64
	Follow   bool // Stat: follow a symbolic link; Mkdir: make parents; Remove: recursive
	Force    bool
}

// Append appends the payload.
func (m *Path) Append(b []byte) []byte {
	b = appendString(b, m.Path)
	b = appendString(b, m.To)
	b = appendString(b, m.User)
	b = appendUint(b, uint64(m.Mode))
	b = appendInt(b, int64(m.Depth))
	b = appendInt(b, int64(m.Max))
	b = appendInt(b, m.Offset)
	b = appendInt(b, m.Length)
	b = appendBool(b, m.Follow)
	return appendBool(b, m.Force)
}

// Decode reads the payload.
func (m *Path) Decode(p []byte) error {
	r := reader{b: p}
	m.Path = r.path()
	m.To = r.path()
	m.User = r.name()
	m.Mode = r.uint32()
	m.Depth = r.int32()
	m.Max = r.int32()
	m.Offset = r.int()
	m.Length = r.int()
	m.Follow = r.bool()
	m.Force = r.bool()
	return r.end("path request")
}

// Control is the payload of the small requests on a command or session: Resume, Ack (Offset), Signal (Value,
// Flag = whole tree), Resize (Value = columns<<16 | rows), Release, CloseSession; of Dial (Value = port); and of
// Hold (Flag = hold).
type Control struct {
	Name   string
	Offset int64
	Value  int32
	Flag   bool
}

// Append appends the payload.
func (m *Control) Append(b []byte) []byte {
	b = appendString(b, m.Name)
	b = appendInt(b, m.Offset)
	b = appendInt(b, int64(m.Value))
	return appendBool(b, m.Flag)
}

// Decode reads the payload.
func (m *Control) Decode(p []byte) error {
	r := reader{b: p}
	m.Name = r.name()
	m.Offset = r.int()
	m.Value = r.int32()
	m.Flag = r.bool()
	return r.end("control request")
}

// Input is the payload of an Input request. Data is part of the decoded payload.
//
// With a writer (a name that it chose) Offset is Data's place in all that this writer sends, and what was taken before
// is not taken again. Without one, Data is appended whatever it is, and Offset is not sent.
type Input struct {
	Command string
	EOF     bool
	Writer  string
	Offset  int64
	Data    []byte
}

// Bits of an Input's second field. Without a writer it is the bool that it was before there were any.
const (
	inputEOF    = 1
	inputWriter = 2
)

// Append appends the payload.
func (m *Input) Append(b []byte) []byte {
	b = appendString(b, m.Command)
	var flags byte
	if m.EOF {
		flags |= inputEOF
	}
	if m.Writer == "" {
		return append(append(b, flags), m.Data...)
	}
	b = appendString(append(b, flags|inputWriter), m.Writer)
	b = appendUint(b, uint64(m.Offset))
	return append(b, m.Data...)
}

// Decode reads the payload; Data refers to it.
func (m *Input) Decode(p []byte) error {
	r := reader{b: p}
	m.Command = r.name()
	flags := r.byte()
	m.EOF, m.Writer, m.Offset = flags&inputEOF != 0, "", 0
	if flags&inputWriter != 0 {
		m.Writer = r.name()
		m.Offset = int64(r.uint())
		if m.Writer == "" || m.Offset < 0 || m.Offset > math.MaxInt64-MaxInput {
			r.fail()
		}
	}
	if r.bad || flags&^(inputEOF|inputWriter) != 0 || len(r.b) > MaxInput {
		return errMalformed("input")
	}
	m.Data = r.b
	return nil
}
