package linux

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrKVMBroken: /dev/kvm is there and makes machines, but a guest does not run in them.
var ErrKVMBroken = errors.New("present but does not run guests")

// kvmTimeout bounds one guest, whose few instructions take microseconds.
const kvmTimeout = 5 * time.Second

// The interface of /dev/kvm as far as it is used here (linux/kvm.h, amd64).
const (
	kvmGetAPIVersion   = 0xae00
	kvmCreateVM        = 0xae01
	kvmGetVCPUMmapSize = 0xae04
	kvmGetCPUID        = 0xc008ae05
	kvmCreateVCPU      = 0xae41
	kvmSetTSSAddr      = 0xae47
	kvmSetMemory       = 0x4020ae46
	kvmRun             = 0xae80
	kvmSetRegs         = 0x4090ae82
	kvmGetSregs        = 0x8138ae83
	kvmSetSregs        = 0x4138ae84
	kvmSetCPUID        = 0x4008ae90

	kvmExitHalted   = 5
	kvmExitShutdown = 8
	kvmExitEntry    = 9
	kvmExitInternal = 17
)

// TryKVM runs two tiny guests on /dev/kvm: one that halts in real mode, where every machine starts, and one that
// climbs from there to 64-bit mode with paging and uses a vector register, as every kernel does. A device that opens
// proves nothing: there are emulated ones in which stock guests end at once. Error: that of the device, or
// ErrKVMBroken with what happened.
func TryKVM() error {
	if err := runKVM(kvmReal, kvmTimeout); err != nil {
		return fmt.Errorf("a guest in real mode: %w", err)
	}
	if err := runKVM(kvmLong, kvmTimeout); err != nil {
		return fmt.Errorf("a 64-bit guest with paging: %w", err)
	}
	return nil
}

// kvmGuest is a program that is put at kvmEntry, and what it must leave behind at kvmResult before it halts.
type kvmGuest struct {
	code   []byte
	result uint64
}

// Where things lie in a guest's memory.
const (
	kvmEntry  = 0x1000
	kvmGDTR   = 0x1100
	kvmGDT    = 0x1200
	kvmTables = 0x2000 // PML4, PDPT, PD: one page each
	kvmResult = 0x5000
	kvmMemory = 0x10000
	kvmTSS    = 0xfffbd000 // three pages that KVM wants for itself, where no memory is
)

// kvmReal: 16-bit code that stores a word.
var kvmReal = kvmGuest{result: 0x4d56, code: []byte{
	0xfa,       // cli
	0x31, 0xc0, // xor ax, ax
	0x8e, 0xd8, // mov ds, ax
	0xc7, 0x06, 0x00, 0x50, 0x56, 0x4d, // mov word [0x5000], 0x4d56
	0xf4, // hlt
}}

// kvmLong: from real mode by protected mode to long mode.
var kvmLong = kvmGuest{result: 0x0123456789abcdef, code: []byte{
	// 16 bits
	0xfa,       // cli
	0x31, 0xc0, // xor ax, ax
	0x8e, 0xd8, // mov ds, ax
	0x66, 0x0f, 0x01, 0x16, 0x00, 0x11, // lgdt [0x1100]
	0x66, 0xb8, 0x00, 0x20, 0x00, 0x00, // mov eax, 0x2000
	0x0f, 0x22, 0xd8, // mov cr3, eax
	0x0f, 0x20, 0xe0, // mov eax, cr4
	0x66, 0x0d, 0x20, 0x02, 0x00, 0x00, // or eax, PAE | OSFXSR
	0x0f, 0x22, 0xe0, // mov cr4, eax
	0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, EFER
	0x0f, 0x32, // rdmsr
	0x66, 0x0d, 0x00, 0x01, 0x00, 0x00, // or eax, LME
	0x0f, 0x30, // wrmsr
	0x0f, 0x20, 0xc0, // mov eax, cr0
	0x66, 0x83, 0xe0, 0xfb, // and eax, ~EM
	0x66, 0x83, 0xc8, 0x01, // or eax, PE
	0x0f, 0x22, 0xc0, // mov cr0, eax
	0x66, 0xea, 0x46, 0x10, 0x00, 0x00, 0x08, 0x00, // jmp 0x08:0x1046
	// 32 bits
	0xb8, 0x18, 0x00, 0x00, 0x00, // mov eax, 0x18
	0x8e, 0xd8, // mov ds, eax
	0x8e, 0xd0, // mov ss, eax
	0x0f, 0x20, 0xc0, // mov eax, cr0
	0x0d, 0x00, 0x00, 0x00, 0x80, // or eax, PG
	0x0f, 0x22, 0xc0, // mov cr0, eax
	0xea, 0x61, 0x10, 0x00, 0x00, 0x10, 0x00, // jmp 0x10:0x1061
	// 64 bits
	0xb8, 0x18, 0x00, 0x00, 0x00, // mov eax, 0x18
	0x8e, 0xd8, // mov ds, eax
	0x8e, 0xd0, // mov ss, eax
	0x48, 0xb8, 0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, // mov rax, 0x0123456789abcdef
	0x66, 0x48, 0x0f, 0x6e, 0xc0, // movq xmm0, rax
	0x66, 0x0f, 0xd6, 0x04, 0x25, 0x00, 0x50, 0x00, 0x00, // movq [0x5000], xmm0
	0xf4, // hlt
}}

// load writes the program, its descriptor table (32-bit code, 64-bit code, data) and page tables that map the first
// 2 MiB onto themselves.
func (g *kvmGuest) load(mem []byte) {
	copy(mem[kvmEntry:], g.code)
	le := binary.LittleEndian
	le.PutUint16(mem[kvmGDTR:], 4*8-1)
	le.PutUint32(mem[kvmGDTR+2:], kvmGDT)
	for i, d := range []uint64{0, 0x00cf9b000000ffff, 0x00af9b000000ffff, 0x00cf93000000ffff} {
		le.PutUint64(mem[kvmGDT+8*i:], d)
	}
	const present, large = 3, 0x80 // present also says writable
	le.PutUint64(mem[kvmTables:], kvmTables+0x1000|present)
	le.PutUint64(mem[kvmTables+0x1000:], kvmTables+0x2000|present)
	le.PutUint64(mem[kvmTables+0x2000:], present|large)
}

// runKVM runs a guest on a thread of its own, which is interrupted when it takes too long.
func runKVM(g kvmGuest, timeout time.Duration) error {
	var vm kvmMachine
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		vm.thread.Store(int64(unix.Gettid()))
		done <- vm.run(&g)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(timeout):
	}
	// The runtime takes SIGURG for one of its own: it only ends the system call.
	vm.late.Store(true)
	_ = unix.Tgkill(unix.Getpid(), int(vm.thread.Load()), unix.SIGURG)
	select {
	case err := <-done:
		return err
	case <-time.After(kvmTimeout): // it stays where it is; it has nothing that is needed
		return fmt.Errorf("%w: it does not halt and cannot be interrupted", ErrKVMBroken)
	}
}

// kvmMachine is a machine with one processor.
type kvmMachine struct {
	thread atomic.Int64
	late   atomic.Bool
}

func (m *kvmMachine) run(g *kvmGuest) error {
	dev, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	kvm := int(dev.Fd())
	if v, err := kvmCall(kvm, kvmGetAPIVersion, 0); err != nil || v != 12 {
		return fmt.Errorf("/dev/kvm speaks version %d, not 12 (%v)", v, err)
	}
	vm, err := kvmCall(kvm, kvmCreateVM, 0)
	if err != nil {
		return fmt.Errorf("make a machine: %w", err)
	}
	defer unix.Close(vm)
	if _, err := kvmCall(vm, kvmSetTSSAddr, kvmTSS); err != nil {
		return fmt.Errorf("place its task segment: %w", err)
	}
	mem, err := unix.Mmap(-1, 0, kvmMemory, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	g.load(mem)
	region := struct {
		slot, flags            uint32
		guest, size, userspace uint64
	}{size: kvmMemory, userspace: uint64(uintptr(unsafe.Pointer(&mem[0])))}
	if err := kvmPointer(vm, kvmSetMemory, unsafe.Pointer(&region)); err != nil {
		return fmt.Errorf("give it memory: %w", err)
	}
	cpu, err := kvmCall(vm, kvmCreateVCPU, 0)
	if err != nil {
		return fmt.Errorf("make a processor: %w", err)
	}
	defer unix.Close(cpu)
	size, err := kvmCall(kvm, kvmGetVCPUMmapSize, 0)
	if err != nil {
		return err
	}
	shared, err := unix.Mmap(cpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(shared) }()
	if err := kvmReset(kvm, cpu); err != nil {
		return err
	}
	for {
		_, err := kvmCall(cpu, kvmRun, 0)
		switch {
		case err == nil:
			return g.judge(mem, shared)
		case err != unix.EINTR && err != unix.EAGAIN:
			return fmt.Errorf("%w: run: %w", ErrKVMBroken, err)
		case m.late.Load():
			return fmt.Errorf("%w: it did not halt in time", ErrKVMBroken)
		}
	}
}

// kvmReset sets the processor up: what the host's offers, in real mode at kvmEntry.
func kvmReset(kvm, cpu int) error {
	const entries = 256
	var id struct {
		n, pad  uint32
		entries [entries * 10]uint32
	}
	id.n = entries
	if err := kvmPointer(kvm, kvmGetCPUID, unsafe.Pointer(&id)); err != nil {
		return fmt.Errorf("ask what processors can do: %w", err)
	}
	if err := kvmPointer(cpu, kvmSetCPUID, unsafe.Pointer(&id)); err != nil {
		return fmt.Errorf("say what its processor can do: %w", err)
	}
	var sregs [312]byte // the first is cs: base (8 bytes), limit (4), selector (2)
	if err := kvmPointer(cpu, kvmGetSregs, unsafe.Pointer(&sregs)); err != nil {
		return fmt.Errorf("read its registers: %w", err)
	}
	binary.LittleEndian.PutUint64(sregs[0:], 0)
	binary.LittleEndian.PutUint16(sregs[12:], 0)
	if err := kvmPointer(cpu, kvmSetSregs, unsafe.Pointer(&sregs)); err != nil {
		return fmt.Errorf("set its registers: %w", err)
	}
	var regs [18]uint64 // 16 general ones, rip, rflags
	regs[16], regs[17] = kvmEntry, 2
	if err := kvmPointer(cpu, kvmSetRegs, unsafe.Pointer(&regs)); err != nil {
		return fmt.Errorf("set its registers: %w", err)
	}
	return nil
}

// judge tells whether the guest halted and did its work.
func (g *kvmGuest) judge(mem, shared []byte) error {
	reason := binary.LittleEndian.Uint32(shared[8:])
	if reason != kvmExitHalted {
		what := map[uint32]string{kvmExitShutdown: "SHUTDOWN", kvmExitEntry: "FAIL_ENTRY", kvmExitInternal: "INTERNAL_ERROR"}[reason]
		return fmt.Errorf("%w: it stopped with exit reason %d %s", ErrKVMBroken, reason, what)
	}
	if got := binary.LittleEndian.Uint64(mem[kvmResult:]); got != g.result {
		return fmt.Errorf("%w: it halted, but stored %#x instead of %#x", ErrKVMBroken, got, g.result)
	}
	return nil
}

func kvmCall(fd int, request, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return 0, errno
	}
	return int(r), nil
}

func kvmPointer(fd int, request uintptr, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	if errno != 0 {
		return errno
	}
	return nil
}
