package cell

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// running is a call in a slot.
type running struct {
	*Call
	began   int64 // microseconds, monotonic
	checkAt int64 // when to look at it next
	looks   int
	why     End // what it was killed for; 0 = it was not
	out     output
	err     output
	stdin   int
	exec    int // the compiled program, open
	busy    bool
}

// output is what a program writes to one descriptor, up to a bound.
type output struct {
	data []byte
	max  int
	cut  bool
}

// read takes what there is; it returns how much.
func (o *output) read(fd int, buf []byte) int {
	total := 0
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return total
		}
		total += n
		take := min(n, o.max-len(o.data))
		o.data = append(o.data, buf[:take]...)
		if take < n {
			o.cut = true
			return total
		}
		if n < len(buf) {
			return total
		}
	}
}

// begin lets a call start in the slot, which is ready.
func (s *slot) begin(c *Call) {
	r := &running{Call: c, stdin: -1, exec: -1, out: output{max: int(c.Limits.Output)}, err: output{max: int(c.Limits.Output)}}
	s.call, s.state = r, taken
	if msg, end := s.arrange(r); end != 0 {
		r.why = end
		s.w.reply(&Reply{ID: c.ID, End: end, Message: msg})
		s.release()
		s.kill()
		return
	}
	s.group.begin()
	r.began = now()
	r.checkAt = r.began + firstLook
	if c.Limits.WallMicros < firstLook {
		r.checkAt = r.began + c.Limits.WallMicros
	}
	one := [8]byte{1}
	_, _ = unix.Write(s.start, one[:])
}

// release closes what only the start needs; the reply has been given or will be.
func (s *slot) release() {
	for _, fd := range []*int{&s.call.stdin, &s.call.exec} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// arrange fits the cell to the call. On failure it says what of, and whose doing.
func (s *slot) arrange(r *running) (string, End) {
	l := &r.Limits
	sc := s.script
	if s.size.FileBytes != l.FileBytes || s.size.Files != l.Files {
		if err := resize(s.dir, l); err != nil {
			return err.Error(), Broken
		}
		s.size = *l
	}
	if err := s.group.limit(l); err != nil {
		return err.Error(), Broken
	}
	if len(r.Files) > 0 {
		if err := writeFiles(s.dir, r.Files, int(s.uid)); err != nil {
			return err.Error(), CannotStart
		}
	}
	if len(r.Stdin) > 0 {
		var err error
		if r.stdin, err = memoryFile(r.Stdin); err != nil {
			return err.Error(), Broken
		}
		sc.Set(s.step.stdin, 0, uintptr(r.stdin))
	} else {
		sc.Set(s.step.stdin, 0, uintptr(s.w.null))
	}
	if argsSize(r.Argv)+argsSize(r.Env)+1024 > min(MaxArgs+1024, sc.Room()) {
		return "arguments and environment are too long: put data into files or stdin", CannotStart
	}
	if len(r.Argv) == 0 || hasNUL(r.Argv) || hasNUL(r.Env) {
		return "arguments must not be empty or hold NUL", CannotStart
	}
	argv := append([]string(nil), r.Argv...)
	path := ""
	if r.Program == "" {
		if path = lookPath(argv[0]); path == "" {
			return argv[0] + ": no such program in this runtime", CannotStart
		}
	} else {
		var err error
		if r.exec, err = unix.Openat(s.w.cache, r.Program, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err != nil {
			if err == unix.ENOENT {
				return "compiled program: it is not there any more", NoProgram
			}
			return "compiled program: " + err.Error(), Broken
		}
	}
	args, env := sc.Strings(argv), sc.Strings(r.Env)
	if path != "" {
		sc.SetCall(s.step.exec, unix.SYS_EXECVE, sc.String(path), args, env)
	} else {
		sc.SetCall(s.step.exec, unix.SYS_EXECVEAT, uintptr(r.exec), sc.String(""), args, env, unix.AT_EMPTY_PATH)
	}
	limit := func(step int, soft, hard uint64) {
		b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, soft), hard)
		sc.Set(step, 1, sc.Bytes(b))
	}
	limit(s.step.file, uint64(l.FileBytes), uint64(l.FileBytes))
	limit(s.step.nofile, maxOpen, maxOpen)
	stack := uint64(min(l.Memory, maxStack))
	limit(s.step.stack, stack, stack)
	seconds := uint64(l.CPUMicros/1_000_000) + 2 // only if nobody looks in time
	limit(s.step.cpu, seconds, seconds)
	return "", 0
}

const (
	maxOpen  = 1024
	maxStack = 256 << 20
)

func argsSize(l []string) int {
	n := 16 + 8*len(l)
	for _, v := range l {
		n += len(v) + 1
	}
	return n
}

func hasNUL(l []string) bool {
	for _, s := range l {
		if strings.IndexByte(s, 0) >= 0 {
			return true
		}
	}
	return false
}

// When running calls are looked at, microseconds.
const (
	firstLook = 5_000
	lastLook  = 50_000
)

// look takes the call's output and kills it when it has used up a limit.
func (s *slot) look(t int64) {
	r := s.call
	r.looks++
	if s.w.takeOutput(s); r.out.cut || r.err.cut {
		s.stop(OutputFull)
		return
	}
	left := r.began + r.Limits.WallMicros - t
	if left <= 0 {
		s.stop(WallTime)
		return
	}
	cpu := r.Limits.CPUMicros - s.group.cpuMicros(s.group.cpuBase)
	if cpu <= 0 {
		s.stop(CPUTime)
		return
	}
	// All processors together use the rest up this soon.
	soon := max(cpu/int64(s.w.cpus), 1000)
	r.checkAt = t + min(left, soon, int64(min(r.looks, 10))*firstLook, lastLook)
}

// takeOutput reads what there is. Who writes much is listened to at once from then on.
func (w *worker) takeOutput(s *slot) {
	n := s.call.out.read(s.out[0], w.buf) + s.call.err.read(s.err[0], w.buf)
	if n >= 32<<10 && !s.call.busy {
		s.call.busy = true
		_ = w.watch(s.out[0], slotOutput, s.n)
		_ = w.watch(s.err[0], slotOutput, s.n)
	}
}

// stop ends the call for a reason.
func (s *slot) stop(why End) {
	if s.call.why == 0 {
		s.call.why = why
		s.call.checkAt = 1 << 62
		s.kill()
	}
}

// kill ends the cell: with its first process every other goes.
func (s *slot) kill() { _ = unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0) }

// finish answers the call, all of whose processes are gone.
func (s *slot) finish() {
	r := s.call
	s.call = nil
	defer func() {
		for _, fd := range []int{r.stdin, r.exec} {
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}()
	if r.began == 0 {
		return // answered when it could not begin
	}
	p := &Reply{ID: r.ID, WallMicros: now() - r.began}
	r.out.read(s.out[0], s.w.buf)
	r.err.read(s.err[0], s.w.buf)
	p.Stdout, p.Stderr, p.StdoutCut, p.StderrCut = r.out.data, r.err.data, r.out.cut, r.err.cut
	p.CPUMicros, p.MemoryPeak = s.group.cpuMicros(s.group.cpuBase), s.group.peakBytes()
	s.judge(r, p)
	if p.End != Exited || p.Code != 0 {
		p.DiskFull = p.Signal == int64(unix.SIGXFSZ) || full(s.dir)
	}
	if p.End == Exited && len(r.Collect) > 0 {
		p.Files = collect(s.dir, r.Collect, r.CollectBytes, MaxReply-int64(len(p.Stdout)+len(p.Stderr)))
	}
	s.w.reply(p)
}

// judge tells how the call ended.
func (s *slot) judge(r *running, p *Reply) {
	info := s.script.Memory(s.wait, 32)
	code, status := int32(binary.LittleEndian.Uint32(info[8:])), int32(binary.LittleEndian.Uint32(info[24:]))
	oom := s.group.oomKills() > 0
	switch {
	case r.why != 0:
		p.End = r.why
		if oom && (r.why == WallTime || r.why == CPUTime) {
			p.End = OutOfMemory // what is left of it waits for what was killed
		}
	case code == 0:
		// The first process did not see the end: nobody but us can kill it, but the machine's memory killer.
		p.End, p.Message = Broken, "the cell ended by itself"
	default:
		if step, err := s.script.Failed(); step >= s.step.first && step <= s.step.exec {
			p.End, p.Message = Broken, s.names[step]+": "+err.Error()
			if step == s.step.exec {
				p.End, p.Message = CannotStart, r.Argv[0]+": "+err.Error()
			}
			return
		}
		switch {
		case r.out.cut || r.err.cut:
			p.End = OutputFull
		case p.CPUMicros >= r.Limits.CPUMicros:
			p.End = CPUTime
		case oom && (code != cldExited || status != 0):
			p.End = OutOfMemory
		case code == cldExited:
			p.End = Exited
		default:
			p.End = Signalled
		}
		if code == cldExited {
			p.Code = int64(status)
		} else {
			p.Signal = int64(status)
		}
	}
}

const cldExited = 1
