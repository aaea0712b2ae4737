package linux

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// TryNftables asks for the tables of the calling thread's network namespace, which loads the module if there is one.
func TryNftables() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer unix.Close(fd)
	tv := unix.NsecToTimeval(10e9)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	const kind = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETTABLE
	msg := appendMessage(nil, kind, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, 1, []byte{unix.AF_UNSPEC, 0, 0, 0})
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask for nftables: %w", err)
	}
	b := make([]byte, 16<<10)
	n, _, err := unix.Recvfrom(fd, b, 0)
	if err != nil {
		return fmt.Errorf("ask for nftables: %w", err)
	}
	for m := range messages(b[:n]) {
		if m.kind == unix.NLMSG_ERROR && len(m.body) >= 4 {
			if errno := -int32(binary.NativeEndian.Uint32(m.body)); errno != 0 {
				return fmt.Errorf("ask for nftables: %w", unix.Errno(errno))
			}
		}
	}
	return nil
}
