package cell

import (
	"encoding/binary"
	"errors"
	"io"
)

// Messages, by the byte behind a frame's length.
const (
	MsgConfig = 1 + iota // edge to worker, once, first
	MsgCall
	MsgWant
	MsgCancel
	MsgReady // worker to edge: the answer to MsgConfig
	MsgReply
	MsgLog
)

// MaxFrame bounds one message, bytes.
const MaxFrame = 64 << 20

// MaxReply is how many bytes the output and the files of a call have together at most: the rest of a frame is for names
// and numbers.
const MaxReply = MaxFrame - 1<<20

// Layer is where a layer lies on the node.
type Layer struct{ Meta, Data string }

// Groups are the directories of control groups below which slots make theirs. Memory, Pids and CPU are v1's, and empty
// on a host whose v2 tree has the controllers.
type Groups struct{ V2, Memory, Pids, CPU string }

// Config is what a worker begins with.
type Config struct {
	Stage   string  // an empty directory of the host's, to prepare the root on
	Layers  []Layer // bottom to top
	Cache   string  // directory of compiled programs
	Groups  Groups
	UIDBase uint32 // slots use ids from here on
	Filter  []byte // system-call filter, as the kernel takes it
}

// Limits of a call; all must be above 0.
type Limits struct {
	CPUMicros  int64 // of all its processes together
	WallMicros int64
	Memory     int64 // bytes, its files included
	Pids       int64
	Output     int64 // bytes of each of stdout and stderr
	Files      int64 // files and directories
	FileBytes  int64 // of all of them together
}

// File is one of a call's, its path relative to the working directory.
type File struct {
	Path string
	Mode uint32 // permission bits
	Data []byte
}

// Call is one execution.
type Call struct {
	ID           uint64
	Argv         []string // Argv[0] is looked for in PATH; {} stands for the compiled program
	Env          []string
	Stdin        []byte
	Files        []File
	Program      string // name of a compiled program in the cache, which is what is executed then
	Limits       Limits
	Collect      []string // files that are wanted back
	CollectBytes int64    // bound of each of them
}

// End tells how a call ended.
type End byte

// The ends.
const (
	Exited End = 1 + iota
	Signalled
	CPUTime
	WallTime
	OutputFull
	OutOfMemory
	Cancelled
	CannotStart
	Broken    // the platform's doing
	NoProgram // the compiled program is not in the cache
)

// Reply is what came of a call.
type Reply struct {
	ID                   uint64
	End                  End
	Code, Signal         int64
	Stdout, Stderr       []byte
	StdoutCut, StderrCut bool
	DiskFull             bool // the file limit was reached
	CPUMicros            int64
	WallMicros           int64
	MemoryPeak           int64
	Files                []File // those of Collect that are there
	Message              string // of CannotStart and Broken
}

func appendBytes[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}

func appendStrings(b []byte, l []string) []byte {
	b = binary.AppendUvarint(b, uint64(len(l)))
	for _, s := range l {
		b = appendBytes(b, s)
	}
	return b
}

func appendFiles(b []byte, l []File) []byte {
	b = binary.AppendUvarint(b, uint64(len(l)))
	for _, f := range l {
		b = binary.AppendUvarint(appendBytes(b, f.Path), uint64(f.Mode))
		b = appendBytes(b, f.Data)
	}
	return b
}

func appendInts(b []byte, l ...int64) []byte {
	for _, v := range l {
		b = binary.AppendVarint(b, v)
	}
	return b
}

// AppendFrame appends a message to b; body appends its content.
func AppendFrame(b []byte, msg byte, body func([]byte) []byte) []byte {
	at := len(b)
	b = body(append(b, 0, 0, 0, 0, msg))
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// ReadFrame reads one message. Errors: the reader's; ErrMalformed.
func ReadFrame(r io.Reader) (msg byte, body []byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n == 0 || n > MaxFrame {
		return 0, nil, ErrMalformed
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, nil, err
	}
	return b[0], b[1:], nil
}

// ErrMalformed says that a message is not one.
var ErrMalformed = errors.New("malformed message")

// reader takes values off a message; the first that is wrong makes all others zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) fail() { r.bad, r.b = true, nil }

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes returns a part of the message itself.
func (r *reader) bytes() []byte {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) string() string { return string(r.bytes()) }

// count reads the length of a list of which every element takes a byte at least.
func (r *reader) count() int {
	n := r.uint()
	if n > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *reader) strings() []string {
	var l []string
	for n := r.count(); n > 0 && !r.bad; n-- {
		l = append(l, r.string())
	}
	return l
}

func (r *reader) files() []File {
	var l []File
	for n := r.count(); n > 0 && !r.bad; n-- {
		l = append(l, File{Path: r.string(), Mode: uint32(r.uint()), Data: r.bytes()})
	}
	return l
}

func (r *reader) end() error {
	if r.bad || len(r.b) != 0 {
		return ErrMalformed
	}
	return nil
}
