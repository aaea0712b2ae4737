package fuse

import (
	"encoding/binary"
	"fmt"
)

// Requests that are answered with more than "not supported".
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
)

const (
	protoMajor = 7
	protoMinor = 38 // the last whose structures are known here

	rootID = 1

	// Flags of INIT.
	asyncRead     = 1 << 0
	parallelDir   = 1 << 18
	asyncDirect   = 1 << 15
	maxPages      = 1 << 22
	noOpendir     = 1 << 24
	explicitInval = 1 << 25
	initExt       = 1 << 30
	hasResend     = 1 << (39 - 32) // in the second word

	// Flags of OPEN's answer.
	openDirect    = 1 << 0
	openKeepCache = 1 << 1
	openNoFlush   = 1 << 5

	notifyResend = 7

	inHeaderSize  = 40
	outHeaderSize = 16

	modeDir  = 0o40500
	modeFile = 0o100400

	// forever is how long, seconds, the kernel may believe what it was told: nothing changes.
	forever = 1 << 31
)

var ne = binary.NativeEndian

// header of a request.
type header struct {
	op     uint32
	unique uint64
	node   uint64
}

// parse splits a request. The kernel is trusted; the check is for what a mistake would look like.
func parse(b []byte) (header, []byte, error) {
	if len(b) < inHeaderSize || int(ne.Uint32(b)) != len(b) {
		return header{}, nil, fmt.Errorf("fuse: request of %d bytes", len(b))
	}
	return header{op: ne.Uint32(b[4:]), unique: ne.Uint64(b[8:]), node: ne.Uint64(b[16:])}, b[inHeaderSize:], nil
}

// outHeader begins an answer with size bytes of content.
func outHeader(unique uint64, errno int32, size int) []byte {
	b := make([]byte, outHeaderSize, outHeaderSize+128)
	ne.PutUint32(b, uint32(outHeaderSize+size))
	ne.PutUint32(b[4:], uint32(-errno))
	ne.PutUint64(b[8:], unique)
	return b
}

// putAttr appends a struct fuse_attr.
func putAttr(b []byte, f File) []byte {
	mode, links := uint32(modeFile), uint32(1)
	if f.ID == rootID {
		mode, links = modeDir, 2
	}
	b = ne.AppendUint64(b, f.ID)
	b = ne.AppendUint64(b, uint64(f.Size))
	b = ne.AppendUint64(b, uint64(f.Size+511)/512)
	b = append(b, make([]byte, 3*8+3*4)...) // times
	b = ne.AppendUint32(b, mode)
	b = ne.AppendUint32(b, links)
	b = append(b, make([]byte, 3*4)...) // owner, device
	b = ne.AppendUint32(b, 4096)
	return ne.AppendUint32(b, 0)
}

// entryOut is the answer to LOOKUP.
func entryOut(f File) []byte {
	b := ne.AppendUint64(nil, f.ID)
	b = ne.AppendUint64(b, 0) // generation: ids are never used again for another file
	b = ne.AppendUint64(b, 0) // names are asked for each time: layers come and go
	b = ne.AppendUint64(b, forever)
	b = ne.AppendUint64(b, 0)
	return putAttr(b, f)
}

// attrOut is the answer to GETATTR.
func attrOut(f File) []byte {
	b := ne.AppendUint64(nil, forever)
	b = ne.AppendUint64(b, 0)
	return putAttr(b, f)
}

// openOut is the answer to OPEN.
func openOut(flags uint32) []byte {
	b := ne.AppendUint64(nil, 0)
	b = ne.AppendUint32(b, flags)
	return ne.AppendUint32(b, 0)
}

// statfsOut is the answer to STATFS: nothing is known, nothing is free.
func statfsOut() []byte {
	b := make([]byte, 80)
	ne.PutUint32(b[40:], 4096)
	ne.PutUint32(b[44:], 255)
	ne.PutUint32(b[48:], 4096)
	return b
}

// initOut is the answer to INIT.
func initOut(minor, readahead, flags, flags2 uint32) []byte {
	b := ne.AppendUint32(nil, protoMajor)
	b = ne.AppendUint32(b, min(minor, protoMinor))
	b = ne.AppendUint32(b, readahead)
	b = ne.AppendUint32(b, flags)
	b = ne.AppendUint16(b, background)
	b = ne.AppendUint16(b, background*3/4)
	b = ne.AppendUint32(b, 4096) // writes: there are none
	b = ne.AppendUint32(b, 1)
	b = ne.AppendUint16(b, MaxRead/4096)
	b = ne.AppendUint16(b, 0)
	b = ne.AppendUint32(b, flags2)
	return append(b, make([]byte, 64-len(b))...)
}
