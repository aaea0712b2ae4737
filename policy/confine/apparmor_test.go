package confine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/opendsec/dsec/sandbox"
)

func TestProfileText(t *testing.T) {
	p := &Profile{Caps: []string{"chown"}, Denied: []FileRule{{"/proc/kcore", "rwklx"}}}
	name := p.Name()
	want := `profile NAME flags=(attach_disconnected,mediate_deleted) {
  file,
  network,
  unix,
  capability chown,
  signal (send, receive) peer=NAME,
  signal (receive) peer=unconfined,
  ptrace (trace, read, tracedby, readby) peer=NAME,
  ptrace (readby) peer=unconfined,
  deny mount,
  deny remount,
  deny umount,
  deny pivot_root,
  deny /proc/kcore rwklx,
}
`
	if got := strings.ReplaceAll(p.Text(), name, "NAME"); got != want {
		t.Errorf("text\n%s\nwant\n%s", got, want)
	}
	other := &Profile{Caps: []string{"chown", "kill"}, Denied: p.Denied}
	if other.Name() == name {
		t.Error("two profiles of one name")
	}
	// The parser knows the language whatever the kernel has.
	if _, err := exec.LookPath("apparmor_parser"); err != nil {
		t.Skip("no apparmor_parser")
	}
	cmd := exec.Command("apparmor_parser", "--skip-kernel-load", "--skip-cache")
	cmd.Stdin = strings.NewReader(DefaultProfile().Text())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("apparmor_parser: %v: %s", err, out)
	}
}

// TestProfileHolds runs a root process with every capability, in the host's namespaces and without a filter, under
// the profile: what it is refused, AppArmor refuses.
func TestProfileHolds(t *testing.T) {
	if os.Getenv("CONFINE_ATTACK") != "" {
		attack()
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	name, err := DefaultProfile().Load(t.Context())
	if errors.Is(err, sandbox.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, err := DefaultProfile().Load(t.Context()); err != nil || again != name {
		t.Fatalf("second load: %q, %v", again, err)
	}
	victim := exec.Command("sleep", "1000")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = victim.Process.Kill(); _ = victim.Wait() }()
	try := func(profile string) string {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if profile != "" {
			if err := os.WriteFile(fmt.Sprintf("/proc/self/task/%d/attr/apparmor/exec", syscall.Gettid()), []byte("exec "+profile), 0); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestProfileHolds$")
		cmd.Env = append(os.Environ(), "CONFINE_ATTACK="+fmt.Sprint(victim.Process.Pid))
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("child: %v\n%s", err, out)
		}
		return string(out)
	}
	free, bound := try(""), try(name)
	t.Logf("unconfined:\n%s\nconfined:\n%s", free, bound)
	if !strings.Contains(free, "profile unconfined\n") || !strings.Contains(bound, "profile "+name+" (enforce)\n") {
		t.Error("not under the profiles that were asked for")
	}
	for _, what := range []string{"mount", "remount", "umount", "pivot_root", "write /proc/sys/kernel/hostname", "read /proc/kcore",
		"write /proc/sysrq-trigger", "write /sys", "ptrace", "kill", "leave the profile", "host name", "device node's disk"} {
		if !strings.Contains(free, what+": ok\n") {
			t.Errorf("%s: unconfined, it does not work either, so that nothing is shown", what)
		}
		if !strings.Contains(bound, what+": permission denied\n") && !strings.Contains(bound, what+": operation not permitted\n") {
			t.Errorf("%s is not refused", what)
		}
	}
	for _, what := range []string{"write a file", "run a program", "signal its own child", "own group"} {
		if !strings.Contains(bound, what+": ok\n") {
			t.Errorf("%s does not work", what)
		}
	}
}
