package kernel

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/internal/linux/feature"
)

// commandLine of the kernel: what Debian 13 has by default (cgroup v2 alone, AppArmor), a console, no waiting.
const commandLine = "console=ttyS0 panic=-1 quiet loglevel=5 apparmor=1 security=apparmor"

// machine is what QEMU is started with.
type machine struct {
	kernel, initrd, root, tests, layers string
	scratch                             string // an empty xfs, the run's own
	console, channel                    string // files that the two are written to
	memory                              string
	cpus                                int
	kvm                                 bool
}

// args are QEMU's arguments.
func (m *machine) args() []string {
	// One thread for all processors: with one each, QEMU 7.2 can run an instruction while another processor replaces it,
	// and the kernel does that to itself (a panic in enqueue_task_fair when the first CPU limit is set).
	// And without erms the guest's kernel clears memory by words: an emulated `rep stosb` goes byte by byte.
	accel, cpu := "tcg,thread=single", "max,-erms"
	if m.kvm {
		accel, cpu = "kvm", "max"
	}
	a := []string{"-M", "q35", "-accel", accel, "-cpu", cpu, "-smp", strconv.Itoa(m.cpus), "-m", m.memory,
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-chardev", "file,id=console,path=" + m.console, "-serial", "chardev:console",
		"-chardev", "pipe,id=channel,path=" + m.channel,
		"-device", "virtio-serial-pci", "-device", "virtconsole,chardev=channel",
		"-kernel", m.kernel, "-initrd", m.initrd, "-append", commandLine}
	for i, d := range []string{m.root, m.tests, m.layers} {
		id := "d" + strconv.Itoa(i)
		// snapshot: what the machine writes is thrown away.
		a = append(a, "-drive", "if=none,format=raw,cache=unsafe,snapshot=on,id="+id+",file="+d,
			"-device", "virtio-blk-pci,drive="+id)
	}
	return append(a, "-drive", "if=none,format=raw,cache=unsafe,discard=unmap,id=scratch,file="+m.scratch, "-device", "virtio-blk-pci,drive=scratch")
}

// HaveKVM tells whether guests run on the processor itself. Some hosts have the device and no more: a machine would
// start there and never get anywhere.
func HaveKVM() bool { return feature.Have("KVM") == nil }

// boot runs the machine until it powers off, ctx ends or tell says no; tell gets each line of the channel.
func (m *machine) boot(ctx context.Context, dir string, tell func(line string)) error {
	m.console, m.channel = filepath.Join(dir, "console"), filepath.Join(dir, "channel")
	// QEMU wants a pair of pipes; nothing is written to the first.
	for _, end := range []string{".in", ".out"} {
		if err := syscall.Mkfifo(m.channel+end, 0o600); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Both ends are held open here, so that neither we nor QEMU wait for the other to open them.
	in, err := os.OpenFile(m.channel+".in", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(m.channel+".out", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	var errs strings.Builder
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.args()...)
	cmd.Stderr = &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		out.Close()
		return fmt.Errorf("start QEMU: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines(out, tell)
	}()
	err = cmd.Wait()
	// What QEMU wrote last is still in the pipe: a line of ours after it ends the reading.
	_, _ = io.WriteString(out, "\n"+endOfChannel+"\n")
	<-done
	out.Close()
	if err != nil {
		return fmt.Errorf("QEMU: %w\n%s", err, strings.TrimSpace(errs.String()))
	}
	return nil
}
