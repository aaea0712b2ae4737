package initd

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The loop's system calls do not block, so they are made without telling Go's scheduler. Told, it wakes its monitor
// thread, which then looks every 20 microseconds, takes the only processor away from a call that is slow because it
// wakes somebody, and hands it to yet another thread: a command cost eight changes of thread instead of two.

func rawError(e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return e
}

func pointer(p []byte) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(p))
}

func rawRead(fd int, p []byte) (int, error) {
	n, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(pointer(p)), uintptr(len(p)))
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

func rawWrite(fd int, p []byte) (int, error) {
	n, _, e := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(pointer(p)), uintptr(len(p)))
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

func rawClose(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0)
}

func rawNonblock(fd int) {
	fl, _, e := unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GETFL, 0)
	if e == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETFL, fl|unix.O_NONBLOCK)
	}
}

// rawPipe makes a pipe that is closed by exec.
func rawPipe() (r, w int, err error) {
	var p [2]int32
	_, _, e := unix.RawSyscall(unix.SYS_PIPE2, uintptr(unsafe.Pointer(&p)), unix.O_CLOEXEC, 0)
	return int(p[0]), int(p[1]), rawError(e)
}

// rawEpollWait waits for at most the given milliseconds.
func rawEpollWait(fd int, events []unix.EpollEvent, millis int) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), uintptr(millis), 0, 0)
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

func rawEpollCtl(epfd, op, fd int, ev *unix.EpollEvent) error {
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(ev)), 0, 0)
	return rawError(e)
}

// rawReap takes one child that has ended; 0 = there is none now.
func rawReap() (pid int, ws unix.WaitStatus, err error) {
	var status int32
	n, _, e := unix.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&status)), unix.WNOHANG|unix.WALL, 0, 0, 0)
	if e != 0 {
		return -1, 0, e
	}
	return int(n), unix.WaitStatus(status), nil
}

// rawReceive reads from a socket, with the control message beside it.
func rawReceive(fd int, p, oob []byte) (n, oobn, flags int, err error) {
	iov := unix.Iovec{Base: unsafe.SliceData(p), Len: uint64(len(p))}
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: unsafe.SliceData(oob), Controllen: uint64(len(oob))}
	r, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if e != 0 {
		return -1, 0, 0, e
	}
	return int(r), int(msg.Controllen), int(msg.Flags), nil
}

// rawSend writes to a socket what it takes.
func rawSend(fd int, p []byte) (int, error) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(pointer(p)), uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if e != 0 {
		return -1, e
	}
	return int(n), nil
}

// rawPending is the number of bytes that can be read from a pipe or terminal.
func rawPending(fd int) (int, error) {
	var n int32
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCINQ, uintptr(unsafe.Pointer(&n)))
	return int(n), rawError(e)
}
