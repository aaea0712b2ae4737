package linux

import (
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// maxPassed is the most descriptors that one message carries (the kernel's own limit is 253).
const maxPassed = 16

// SendFiles writes one message with descriptors to a Unix socket (SOCK_SEQPACKET or SOCK_STREAM).
func SendFiles(c *net.UnixConn, msg []byte, files ...*os.File) error {
	if len(files) > maxPassed {
		return fmt.Errorf("send %d descriptors: at most %d in one message", len(files), maxPassed)
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(msg, oob, nil)
	if err == nil && n < len(msg) {
		err = io.ErrShortWrite
	}
	return err
}

// ReceiveFiles reads one message with its descriptors into buf. The caller closes the files.
func ReceiveFiles(c *net.UnixConn, buf []byte) (int, []*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(maxPassed*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	if n == 0 && oobn == 0 {
		return 0, nil, io.EOF
	}
	var files []*os.File
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return n, nil, fmt.Errorf("parse control message: %w", err)
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	if flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		for _, f := range files {
			f.Close()
		}
		return n, nil, fmt.Errorf("message with descriptors was cut")
	}
	return n, files, nil
}

// SocketPair makes two connected SOCK_SEQPACKET sockets.
func SocketPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "pair0"), os.NewFile(uintptr(fds[1]), "pair1"), nil
}

// StreamPair makes two connected SOCK_STREAM sockets.
func StreamPair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "stream0"), os.NewFile(uintptr(fds[1]), "stream1"), nil
}
