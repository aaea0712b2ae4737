package machine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the kernel's device mapper is asked for (include/uapi/linux/dm-ioctl.h).
const (
	mapperPath = "/dev/mapper/control"

	mapperCreate = 3
	mapperResume = 6
	mapperLoad   = 9
	mapperRemove = 4

	mapperReadOnly = 1 << 0

	mapperHead   = 312 // bytes of a request before its table
	mapperTarget = 40  // bytes of a line of a table before its words
	sector       = 512
)

// piece is a part of a block device, in bytes.
type piece struct {
	device     string
	from, size int64
}

// join makes a read-only block device of pieces that follow each other, and returns its path. Where those can be mapped into memory it
// can, too.
func join(name string, pieces ...piece) (string, error) {
	ctl, err := os.OpenFile(mapperPath, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer ctl.Close()
	r, err := askMapper(ctl, mapperCreate, name, 0, nil)
	if err != nil {
		return "", fmt.Errorf("make device %s: %w", name, err)
	}
	dev := binary.LittleEndian.Uint64(r[40:])
	minor := dev&0xff | dev>>12&^0xff
	if _, err = askMapper(ctl, mapperLoad, name, mapperReadOnly, pieces); err == nil {
		_, err = askMapper(ctl, mapperResume, name, 0, nil)
	}
	if err != nil {
		_, _ = askMapper(ctl, mapperRemove, name, 0, nil)
		return "", fmt.Errorf("make device %s: %w", name, err)
	}
	return fmt.Sprintf("/dev/dm-%d", minor), nil
}

// askMapper sends a request about a device, and returns the answer.
func askMapper(ctl *os.File, op uintptr, name string, flags uint32, table []piece) ([]byte, error) {
	le := binary.LittleEndian
	b := make([]byte, mapperHead)
	le.PutUint32(b, 4) // version 4.0.0
	le.PutUint32(b[16:], mapperHead)
	le.PutUint32(b[20:], uint32(len(table)))
	le.PutUint32(b[28:], flags)
	copy(b[48:48+127], name)
	start := int64(0)
	for _, p := range table {
		words := fmt.Sprintf("%s %d\x00", p.device, p.from/sector)
		line := make([]byte, mapperTarget, mapperTarget+len(words)+8)
		le.PutUint64(line, uint64(start/sector))
		le.PutUint64(line[8:], uint64(p.size/sector))
		copy(line[24:], "linear")
		line = append(line, words...)
		line = append(line, make([]byte, -len(line)&7)...)
		le.PutUint32(line[20:], uint32(len(line)))
		b = append(b, line...)
		start += p.size
	}
	le.PutUint32(b[12:], uint32(len(b)))
	const readWrite, magic = 3 << 30, 0xfd << 8
	_, _, e := unix.Syscall(unix.SYS_IOCTL, ctl.Fd(), readWrite|mapperHead<<16|magic|op, uintptr(unsafe.Pointer(&b[0])))
	if e != 0 {
		return nil, e
	}
	return bytes.Clone(b), nil
}
