package networktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// aloneEnv tells the second process that it is the second.
const aloneEnv = "DSEC_TEST_ALONE"

// Alone runs a package's tests in a process whose network namespace is its own, with loopback only, so that what they
// start meets neither the machine's network nor other tests'. For TestMain:
//
//	func TestMain(m *testing.M) { os.Exit(networktest.Alone(prepare, m.Run)) }
//
// prepare runs before, where the machine's network is; nil: nothing. Without root run runs as it is, and its tests skip.
func Alone(prepare func() error, run func() int) int {
	if os.Getenv(aloneEnv) != "" {
		if err := loopback(); err != nil {
			fmt.Fprintln(os.Stderr, "loopback:", err)
			return 1
		}
		return run()
	}
	if os.Geteuid() != 0 {
		return run()
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	runtime.LockOSThread() // the second process ends with this thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), aloneEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "run the tests in a network namespace:", err)
		return 1
	}
	if code := cmd.ProcessState.ExitCode(); code >= 0 {
		return code
	}
	return 1 // a signal
}

func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// Here is the namespace that the test runs in.
func Here(t testing.TB) *Namespace {
	t.Helper()
	h, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	nl, err := netlink.NewHandleAt(h)
	if err != nil {
		h.Close()
		t.Fatal(err)
	}
	n := &Namespace{handle: h, nl: nl}
	t.Cleanup(n.close)
	return n
}
