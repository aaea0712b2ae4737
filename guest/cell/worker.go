package cell

import (
	"encoding/binary"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// kind says what an event of a descriptor means.
type kind int32

const (
	edgeSocket kind = iota
	slotMade
	slotThrough
	slotEnded
	slotOutput
)

// socketFD is where a worker finds the edge's socket.
const socketFD = 3

// worker is the process. All of it happens on one goroutine.
type worker struct {
	cfg     *Config
	edge    *os.File // nothing but its descriptor is used: it must not be collected
	roots   *roots
	cache   int // directory of compiled programs
	null    int
	epoll   int
	cpus    int
	slots   []*slot
	waiting []*Call // without a cell yet
	expect  Limits  // what cells are made for
	retryAt int64   // when to try to make broken cells again; 0 = there are none

	in, out []byte
	buf     []byte
}

// Main runs a worker and does not return.
func Main() {
	runtime.LockOSThread() // the mounts are the main thread's
	w := &worker{buf: make([]byte, 64<<10), cpus: runtime.NumCPU()}
	if err := w.open(); err != nil {
		w.send(MsgReady, AppendText(err.Error()))
		w.flush()
		os.Exit(1)
	}
	w.send(MsgReady, AppendText(""))
	w.run()
}

// open reads the configuration and takes this process into the runtime's root.
func (w *worker) open() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	unix.Umask(0)
	w.edge = os.NewFile(socketFD, "edge")
	msg, body, err := ReadFrame(w.edge)
	if err == nil && msg != MsgConfig {
		err = ErrMalformed
	}
	if err != nil {
		return wrap("read configuration", err)
	}
	if w.cfg, err = parseConfig(body); err != nil {
		return wrap("read configuration", err)
	}
	if w.roots, err = openRoots(&w.cfg.Groups); err != nil {
		return err
	}
	if w.cache, err = openDir(w.cfg.Cache); err != nil {
		return err
	}
	if err := enterRoot(w.cfg); err != nil {
		return err
	}
	if w.null, err = unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return wrap("open /dev/null", err)
	}
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	unix.CloseOnExec(socketFD)
	if err := unix.SetNonblock(socketFD, true); err != nil {
		return err
	}
	w.expect = Limits{Files: 256, FileBytes: 64 << 20}
	return w.watch(socketFD, edgeSocket, 0)
}

func (w *worker) watch(fd int, k kind, slot int) error {
	events := uint32(unix.EPOLLIN)
	if k == edgeSocket {
		events |= unix.EPOLLRDHUP
	}
	return unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(k)})
}

// now is a monotonic clock, microseconds.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Sec*1_000_000 + ts.Nsec/1000
}

// run is the loop.
func (w *worker) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		w.flush()
		n, err := unix.EpollWait(w.epoll, events, w.timeout())
		if err != nil && err != unix.EINTR {
			w.fatal("wait for events", err)
		}
		for k := range max(n, 0) {
			w.event(&events[k])
		}
		w.tick()
	}
}

func (w *worker) event(e *unix.EpollEvent) {
	if kind(e.Pad) == edgeSocket {
		if e.Events&(unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLRDHUP) != 0 {
			os.Exit(0) // and every cell with it
		}
		if e.Events&unix.EPOLLIN != 0 {
			w.receive()
		}
		return
	}
	s := w.slots[e.Fd]
	switch kind(e.Pad) {
	case slotMade:
		s.onMade()
	case slotThrough:
		s.onThrough()
	case slotEnded:
		if s.pidfd >= 0 {
			s.onEnded()
		}
	case slotOutput:
		if s.call != nil && s.state == taken {
			if w.takeOutput(s); s.call.out.cut || s.call.err.cut {
				s.stop(OutputFull)
			}
		}
	}
}

// timeout is how long nothing is due, milliseconds; -1 = for ever.
func (w *worker) timeout() int {
	at := w.retryAt
	for _, s := range w.slots {
		if s.call != nil && s.state == taken && (at == 0 || s.call.checkAt < at) {
			at = s.call.checkAt
		}
	}
	if at == 0 || at == 1<<62 {
		return -1
	}
	return int(max((at-now()+999)/1000, 0))
}

// tick does what is due.
func (w *worker) tick() {
	t := now()
	for _, s := range w.slots {
		if s.call != nil && s.state == taken && s.call.checkAt <= t {
			s.look(t)
		}
	}
	if w.retryAt != 0 && w.retryAt <= t {
		w.retryAt = 0
		for _, s := range w.slots {
			if s.state == broken {
				if err := s.prepare(); err != nil {
					w.fatal("make a cell", err)
				}
			}
		}
	}
}

// receive reads what the edge has sent.
func (w *worker) receive() {
	for {
		n, err := unix.Read(socketFD, w.buf)
		if err == unix.EINTR {
			continue
		}
		if n == 0 && err == nil {
			os.Exit(0)
		}
		if n <= 0 {
			break
		}
		w.in = append(w.in, w.buf[:n]...)
		if n < len(w.buf) {
			break
		}
	}
	for len(w.in) >= 4 {
		n := int(binary.LittleEndian.Uint32(w.in))
		if n < 1 || n > MaxFrame {
			w.fatal("read a message", ErrMalformed)
		}
		if len(w.in) < 4+n {
			return
		}
		// The message keeps its memory: calls refer to it.
		frame := w.in[4 : 4+n : 4+n]
		w.in = w.in[4+n:]
		w.message(frame[0], frame[1:])
	}
	if len(w.in) == 0 {
		w.in = nil
	}
}

func (w *worker) message(msg byte, body []byte) {
	switch msg {
	case MsgCall:
		c, err := ParseCall(body)
		if err != nil {
			w.fatal("read a call", err)
		}
		w.waiting = append(w.waiting, c)
		w.next()
	case MsgWant:
		n, _ := binary.Uvarint(body)
		w.grow(int(n))
	case MsgCancel:
		id, _ := binary.Uvarint(body)
		w.cancel(id)
	}
}

// grow makes slots up to a number; their number does not shrink, a worker ends instead.
func (w *worker) grow(n int) {
	for len(w.slots) < n {
		s, err := w.newSlot(len(w.slots))
		if err != nil {
			w.log("cannot make a slot: " + err.Error())
			return
		}
		w.slots = append(w.slots, s)
	}
}

func (w *worker) cancel(id uint64) {
	for k, c := range w.waiting {
		if c.ID == id {
			w.waiting = append(w.waiting[:k], w.waiting[k+1:]...)
			w.reply(&Reply{ID: id, End: Cancelled})
			return
		}
	}
	for _, s := range w.slots {
		if s.call != nil && s.call.ID == id && s.state == taken {
			s.stop(Cancelled)
		}
	}
}

// next gives waiting calls to cells that are ready.
func (w *worker) next() {
	for _, s := range w.slots {
		if len(w.waiting) == 0 {
			w.waiting = nil
			return
		}
		if s.state == ready {
			c := w.waiting[0]
			w.waiting = w.waiting[1:]
			s.begin(c)
		}
	}
}

func (w *worker) reply(p *Reply) { w.send(MsgReply, p.Append) }

func (w *worker) log(s string) { w.send(MsgLog, AppendText(s)) }

func (w *worker) send(msg byte, body func([]byte) []byte) { w.out = AppendFrame(w.out, msg, body) }

// flush writes what there is to say. The edge reads all the time; while it does not, the worker waits for it.
func (w *worker) flush() {
	for len(w.out) > 0 {
		n, err := unix.Write(socketFD, w.out)
		switch {
		case err == unix.EAGAIN:
			_, _ = unix.Poll([]unix.PollFd{{Fd: socketFD, Events: unix.POLLOUT}}, -1)
		case err == unix.EINTR:
		case err != nil:
			os.Exit(0) // nobody listens
		default:
			w.out = w.out[n:]
		}
	}
	w.out = nil
}

// fatal ends the worker; the edge starts another.
func (w *worker) fatal(what string, err error) {
	w.log(what + ": " + err.Error())
	w.flush()
	os.Exit(1)
}
