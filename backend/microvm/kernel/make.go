package kernel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Of what is shown while a kernel is built, and of what an error holds, lines.
const (
	showEvery = 15 * time.Second
	errorTail = 30
)

// make runs make in the tree, as a group of processes that ends with ctx, and tells how far it is.
func (b *build) make(ctx context.Context, args ...string) error {
	line := append([]string{"make", "-C", b.tree}, args...)
	if !b.o.Urgent {
		line = append([]string{"nice", "-n", "15"}, line...)
	}
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	// The same inputs make the same kernel, whoever builds it and when.
	cmd.Env = append(os.Environ(), "LC_ALL=C", "KBUILD_BUILD_USER=dsec", "KBUILD_BUILD_HOST=dsec", "KBUILD_BUILD_VERSION=1",
		"KBUILD_BUILD_TIMESTAMP=Thu Jan  1 00:00:00 UTC 1970")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	done := make(chan string)
	go func() { done <- b.follow(r) }()
	err := cmd.Run()
	w.Close()
	said := <-done
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("make %s: %w\n%s", strings.Join(args, " "), err, said)
	}
	return nil
}

// follow reads what make says, shows how far it is, and returns the end.
func (b *build) follow(r io.Reader) string {
	var last []string
	began, shown, objects := time.Now(), time.Now(), 0
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		line := s.Text()
		if last = append(last, line); len(last) > errorTail {
			last = last[1:]
		}
		if f := strings.Fields(line); len(f) > 1 && (f[0] == "CC" || f[0] == "AS") {
			if objects++; time.Since(shown) >= showEvery {
				shown = time.Now()
				b.log("%4.0f s: %d files compiled, at %s", time.Since(began).Seconds(), objects, f[len(f)-1])
			}
		}
	}
	_, _ = io.Copy(io.Discard, r) // after a line that is too long
	return strings.Join(last, "\n")
}
