package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// SetTransparent lets a socket have addresses that are not the host's own: it takes connections to others.
func SetTransparent(c syscall.RawConn, v6 bool) error {
	var err error
	cerr := c.Control(func(fd uintptr) {
		if v6 {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		} else {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1)
		}
	})
	if err != nil {
		err = fmt.Errorf("make socket transparent: %w", err)
	}
	return errors.Join(cerr, err)
}

// LinkIndex is the index of an interface in the calling thread's network namespace; os.ErrNotExist without one.
func LinkIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("make socket: %w", err)
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, fmt.Errorf("interface name %q: %w", name, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req); err == unix.ENODEV {
		return 0, fmt.Errorf("interface %s: %w", name, os.ErrNotExist)
	} else if err != nil {
		return 0, fmt.Errorf("interface %s: %w", name, err)
	}
	return int(req.Uint32()), nil
}

// Duplicate is another descriptor of the same open file.
func Duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate descriptor of %s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// TCPSocket makes a socket in the calling thread's network namespace, for ConnectTCP.
func TCPSocket(v6 bool) (*os.File, error) {
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "tcp"), nil
}

// ConnectTCP connects a socket and takes it over. It waits on no thread, and for as long as ctx lets it.
func ConnectTCP(ctx context.Context, socket *os.File, to netip.AddrPort) (net.Conn, error) {
	defer socket.Close()
	var sa unix.Sockaddr = &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	if to.Addr().Is4() {
		sa = &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	rc, err := socket.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cerr error
	if err := rc.Control(func(fd uintptr) { cerr = unix.Connect(int(fd), sa) }); err != nil {
		return nil, err
	}
	if cerr == unix.EINPROGRESS {
		stop := context.AfterFunc(ctx, func() { _ = socket.SetWriteDeadline(time.Unix(1, 0)) })
		defer stop()
		cerr = nil
		err := rc.Write(func(fd uintptr) bool {
			p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
			if n, perr := unix.Poll(p, 0); perr != nil || n == 0 {
				return false
			}
			code, gerr := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
			if cerr = gerr; gerr == nil && code != 0 {
				cerr = unix.Errno(code)
			}
			return true
		})
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	if cerr != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(to), Err: cerr}
	}
	return net.FileConn(socket)
}
