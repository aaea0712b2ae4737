package disk

import (
	"encoding/binary"
	"os"
)

// overlayBits is the size of an overlay's clusters: 64 KiB, as QEMU's own.
const overlayBits = 16

// NewOverlay makes an empty qcow2 file for a disk of a size in bytes. It names no backing file: whoever opens it says what
// it lies on. It grows to little more than size.
func NewOverlay(path string, size int64) error {
	const cluster = 1 << overlayBits
	entries := (size + cluster*cluster/8 - 1) / (cluster * cluster / 8)
	l1 := (entries*8 + cluster - 1) / cluster // clusters of the first table
	// In this order: header, table of counters, one block of counters (16 bits each, for 32,768 clusters), first table.
	b := make([]byte, (3+l1)*cluster)
	copy(b, qcowMagic)
	binary.BigEndian.PutUint32(b[4:], 3)
	binary.BigEndian.PutUint32(b[20:], overlayBits)
	binary.BigEndian.PutUint64(b[24:], uint64(size))
	binary.BigEndian.PutUint32(b[36:], uint32(entries))
	binary.BigEndian.PutUint64(b[40:], 3*cluster)
	binary.BigEndian.PutUint64(b[48:], cluster)
	binary.BigEndian.PutUint32(b[56:], 1)
	binary.BigEndian.PutUint32(b[96:], 4)
	binary.BigEndian.PutUint32(b[100:], headerV3)
	binary.BigEndian.PutUint64(b[cluster:], 2*cluster)
	for i := range 3 + l1 {
		binary.BigEndian.PutUint16(b[2*cluster+2*i:], 1)
	}
	return os.WriteFile(path, b, 0o600)
}
