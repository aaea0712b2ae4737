// Package record keeps what a sandbox did: one journal per sandbox, from which its state, its commands, their
// results and their output are read back after a restart.
//
// # Files
//
// A sandbox's directory holds `journal` and, once some command wrote much, `out/ORDER.OFFSET` segments. All
// are sequences of frames:
//
//	uint32 length    little-endian, of what follows the checksum
//	uint32 checksum  CRC-32C of what follows
//	byte   type      1 = Entry (protobuf, journal.proto), 2 = output
//	...
//
// An output frame is: command's order (uvarint), offset (uvarint), stream (byte), bytes. A frame that is cut
// off or does not match its checksum ends the file: it is truncated there when it is opened.
//
// # What is kept
//
// The first Head bytes of a command's output lie in the journal, so that a short command costs no file of its
// own. What follows goes to segments of Tail bytes each, of which the last two are kept. So output of up to
// Head+Tail bytes is kept whole; of more, the first Head and at least the last Tail bytes, and offsets tell
// what was cut. When many commands run at once each gets less. A journal that grows beyond Total is compacted:
// the output of the oldest ended commands goes, then the commands themselves; at most Keep ended commands are
// kept in any case.
//
// Every method of Log writes before it returns (write(2); with Options.Sync, Sync waits for the disk).
package record
