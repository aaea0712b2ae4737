package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Route is a routing netlink socket of the network namespace that it was opened in. It sends many requests by
// one system call: what a sandbox's link costs is the kernel's work, not ours. Not for concurrent use.
type Route struct {
	fd  int
	seq uint32
	buf []byte
}

// Request is one change, made by the functions of this file's neighbour.
type Request struct {
	kind  uint16
	flags uint16
	body  []byte
	what  string // for errors
	fine  error  // an answer that is as good as success
}

// OpenRoute opens a socket in the calling thread's network namespace.
func OpenRoute() (*Route, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open routing socket: %w", err)
	}
	// Errors come with the kernel's own words, acknowledgements without the request.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	tv := unix.NsecToTimeval(int64(30 * time.Second))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind routing socket: %w", err)
	}
	return &Route{fd: fd}, nil
}

// Close closes the socket.
func (r *Route) Close() error { return unix.Close(r.fd) }

// atOnce bounds a batch: the acknowledgements must fit the socket's buffer.
const atOnce = 64

// Apply sends requests in order and returns the first error; those after it are tried too. The error wraps the
// kernel's errno.
func (r *Route) Apply(reqs ...Request) error {
	var first error
	for len(reqs) > 0 {
		n := min(len(reqs), atOnce)
		if err := r.apply(reqs[:n]); err != nil && first == nil {
			first = err
		}
		reqs = reqs[n:]
	}
	return first
}

func (r *Route) apply(reqs []Request) error {
	r.buf = r.buf[:0]
	base := r.seq + 1
	for _, q := range reqs {
		r.seq++
		r.buf = appendMessage(r.buf, q.kind, q.flags|unix.NLM_F_REQUEST|unix.NLM_F_ACK, r.seq, q.body)
	}
	if err := unix.Sendto(r.fd, r.buf, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to routing socket: %w", err)
	}
	var first error
	in := make([]byte, 32<<10)
	for acked := 0; acked < len(reqs); {
		n, _, err := unix.Recvfrom(r.fd, in, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("read routing socket: %w", err)
		}
		for msg := range messages(in[:n]) {
			i := int(msg.seq - base)
			if msg.kind != unix.NLMSG_ERROR || i < 0 || i >= len(reqs) || len(msg.body) < 4 {
				continue // of an earlier batch that was given up
			}
			acked++
			errno := unix.Errno(-int32(binary.NativeEndian.Uint32(msg.body)))
			if errno != 0 && first == nil && !(reqs[i].fine != nil && errors.Is(errno, reqs[i].fine)) {
				first = fmt.Errorf("%s: %w%s", reqs[i].what, errno, kernelWords(msg))
			}
		}
	}
	return first
}

// Links lists the interfaces: index to name.
func (r *Route) Links() (map[int]string, error) {
	r.seq++
	msg := appendMessage(nil, unix.RTM_GETLINK, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, r.seq, make([]byte, unix.SizeofIfInfomsg))
	if err := unix.Sendto(r.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("ask for interfaces: %w", err)
	}
	out := map[int]string{}
	in := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(r.fd, in, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read interfaces: %w", err)
		}
		for m := range messages(in[:n]) {
			switch {
			case m.seq != r.seq:
			case m.kind == unix.NLMSG_DONE:
				return out, nil
			case m.kind == unix.NLMSG_ERROR && len(m.body) >= 4:
				return nil, fmt.Errorf("list interfaces: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(m.body))))
			case m.kind == unix.RTM_NEWLINK && len(m.body) >= unix.SizeofIfInfomsg:
				index := int(binary.NativeEndian.Uint32(m.body[4:]))
				for k, v := range attributes(m.body[unix.SizeofIfInfomsg:]) {
					if k == unix.IFLA_IFNAME {
						out[index] = unix.ByteSliceToString(v)
					}
				}
			}
		}
	}
}

type message struct {
	kind, flags uint16
	seq         uint32
	body        []byte
}

func appendMessage(b []byte, kind, flags uint16, seq uint32, body []byte) []byte {
	e := binary.NativeEndian
	b = e.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = e.AppendUint16(b, kind)
	b = e.AppendUint16(b, flags)
	b = e.AppendUint32(b, seq)
	b = e.AppendUint32(b, 0)
	b = append(b, body...)
	return append(b, make([]byte, -len(body)&3)...)
}

func messages(b []byte) func(func(message) bool) {
	return func(yield func(message) bool) {
		e := binary.NativeEndian
		for len(b) >= unix.SizeofNlMsghdr {
			n := int(e.Uint32(b))
			if n < unix.SizeofNlMsghdr || n > len(b) {
				return
			}
			if !yield(message{e.Uint16(b[4:]), e.Uint16(b[6:]), e.Uint32(b[8:]), b[unix.SizeofNlMsghdr:n]}) {
				return
			}
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

func attributes(b []byte) func(func(uint16, []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		e := binary.NativeEndian
		for len(b) >= unix.SizeofRtAttr {
			n := int(e.Uint16(b))
			if n < unix.SizeofRtAttr || n > len(b) {
				return
			}
			if !yield(e.Uint16(b[2:])&^unix.NLA_F_NESTED, b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(len(b), (n+3)&^3):]
		}
	}
}

// kernelWords is the explanation that came with an error.
func kernelWords(m message) string {
	if m.flags&unix.NLM_F_ACK_TLVS == 0 || len(m.body) < 20 {
		return ""
	}
	for k, v := range attributes(m.body[20:]) {
		if k == unix.NLMSGERR_ATTR_MSG {
			return " (" + unix.ByteSliceToString(v) + ")"
		}
	}
	return ""
}
