package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTap makes a tap interface in the calling thread's network namespace, down, and returns its queue: a read takes one
// frame that was sent to it, a write is one frame that it receives. The interface is there as long as the queue is open,
// in whichever process. Frames have no header: whoever holds the queue says nothing of checksums and segments. It is
// unix.EBUSY when the name or the index is taken.
func OpenTap(name string, index int) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, fmt.Errorf("make interface %s: %w", name, err) }
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail(fmt.Errorf("open /dev/net/tun: %w", err))
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_TUN_EXCL)
		if err = unix.IoctlSetPointerInt(fd, unix.TUNSETIFINDEX, index); err == nil {
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
	}
	if err != nil {
		unix.Close(fd)
		return fail(err)
	}
	// Only now: before it has an interface the kernel has nothing to wait for.
	return os.NewFile(uintptr(fd), name), nil
}

// ChangeLink gives an interface a hardware address, an MTU (0: as it is), and a network namespace (nil: it stays).
func ChangeLink(index int, mac [6]byte, mtu int, space *os.File) Request {
	body := linkHeader(index, false)
	if space != nil {
		body = attribute(body, unix.IFLA_NET_NS_FD, u32(uint32(space.Fd())))
	}
	body = attribute(body, unix.IFLA_ADDRESS, mac[:])
	if mtu > 0 {
		body = attribute(body, unix.IFLA_MTU, u32(uint32(mtu)))
	}
	return Request{kind: unix.RTM_NEWLINK, body: body, what: fmt.Sprintf("change interface %d", index)}
}
