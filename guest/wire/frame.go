package wire

import "encoding/binary"

// Kind of a frame.
type Kind uint8

// The kinds. Requests are answered by Reply or Fail with the same id.
const (
	KindInvalid Kind = iota

	// Requests.
	KindHello
	KindClaim
	KindStart
	KindList
	KindResume
	KindInput
	KindSignal
	KindResize
	KindOpenSession
	KindCloseSession
	KindStat
	KindListDir
	KindMkdir
	KindRename
	KindRemove
	KindOpenRead
	KindOpenWrite
	KindOpenTar
	KindUnpack
	KindDial

	// From the edge, unanswered.
	KindAck
	KindRelease

	// From dsec-init.
	KindReply
	KindFail
	KindOutput
	KindExited
	KindSessionEnded

	// Streams, both ways.
	KindData
	KindCredit
	KindEnd
	KindReset

	// KindHold is a request, too: the sandbox is about to be frozen (Flag), or has been thawed.
	KindHold

	// KindWatch is a request (a Path; Follow = what lies beneath, too) that opens a stream of WatchEvents.
	KindWatch
)

// Bounds of the protocol, in bytes unless said.
const (
	HeaderSize = 12
	HeaderRest = HeaderSize - 4
	// MaxFrame bounds a frame without its length field: the kernel's own limit for arguments is 2 MiB.
	MaxFrame = 2<<20 + 128<<10
	// MaxData bounds the bytes in a Data and an Output frame.
	MaxData = 32 << 10
	// MaxInput bounds the bytes in an Input frame.
	MaxInput = 256 << 10
	// Window is the flow control window of a stream in each direction.
	Window = 256 << 10
	// MaxName bounds ids, user names and host names; MaxPath a path.
	MaxName = 256
	MaxPath = 4096
	// MaxStrings bounds the number of strings in one list.
	MaxStrings = 64 << 10
	// MaxFDs bounds the descriptors beside one frame.
	MaxFDs = 2
	// Version of the protocol; Hello must name it.
	Version = 1
)

// Header is a frame's head.
type Header struct {
	Kind Kind
	FDs  int
	ID   uint32
	Size int // of the payload
}

// AppendHeader appends a frame's head for a payload of size bytes.
func AppendHeader(b []byte, kind Kind, id uint32, fds, size int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(HeaderRest+size))
	b = append(b, byte(kind), byte(fds), 0, 0)
	return binary.LittleEndian.AppendUint32(b, id)
}

// Begin appends the head of a frame whose payload is appended next; Finish then sets its length.
func Begin(b []byte, kind Kind, id uint32) (frame []byte, at int) {
	at = len(b)
	return AppendHeader(b, kind, id, 0, 0), at
}

// Finish completes the frame that Begin started at offset at of b.
func Finish(b []byte, at int) []byte {
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// ParseHeader reads a head. b has at least HeaderSize bytes.
func ParseHeader(b []byte) (Header, error) {
	n := binary.LittleEndian.Uint32(b)
	h := Header{Kind: Kind(b[4]), FDs: int(b[5]), ID: binary.LittleEndian.Uint32(b[8:])}
	if n < HeaderRest || n > MaxFrame {
		return h, errMalformed("frame length")
	}
	if h.FDs > MaxFDs || b[6] != 0 || b[7] != 0 {
		return h, errMalformed("frame header")
	}
	h.Size = int(n) - HeaderRest
	return h, nil
}

func errMalformed(what string) error {
	return &Error{Code: CodeInvalid, Message: "malformed " + what}
}
