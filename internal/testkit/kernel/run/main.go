// Command run runs tests on Debian's kernel under QEMU:
//
//	go run ./internal/testkit/kernel/run [flags] [packages]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opendsec/dsec/internal/testkit"
	"github.com/opendsec/dsec/internal/testkit/kernel"
)

func main() {
	o := &kernel.Options{Cache: filepath.Join(testkit.Cache(), "kernel"), Log: func(f string, a ...any) { fmt.Fprintf(os.Stderr, "test-kernel: "+f+"\n", a...) }}
	flag.StringVar(&o.Suite, "suite", os.Getenv("DSEC_KERNEL_SUITE"), "Debian `suite` of the kernel (default trixie)")
	flag.StringVar(&o.Package, "package", os.Getenv("DSEC_KERNEL_PACKAGE"), "meta-package of the kernel (default linux-image-cloud-amd64)")
	flag.StringVar(&o.Mirror, "mirror", os.Getenv("DSEC_DEBIAN_MIRROR"), "Debian `mirror`")
	flag.BoolVar(&o.Update, "update", false, "look for a newer kernel than the one in the cache")
	flag.StringVar(&o.Memory, "memory", "", "of the machine (default 4G)")
	flag.IntVar(&o.CPUs, "cpus", 0, "of the machine (default 2)")
	flag.BoolVar(&o.Long, "long", false, "run what -test.short leaves out as well")
	run := flag.String("run", "", "run only tests that match the `pattern`")
	verbose := flag.Bool("v", false, "show all output as it comes")
	deadline := flag.Duration("deadline", 75*time.Minute, "for all of it")
	flag.Parse()
	machines := kernel.Shares
	if packages := flag.Args(); len(packages) > 0 || *run != "" {
		if len(packages) == 0 {
			for _, s := range slices.Concat(kernel.Shares...) {
				packages = append(packages, s.Packages...)
			}
			slices.Sort(packages)
			packages = slices.Compact(packages)
		}
		machines = [][]kernel.Share{{{Packages: packages, Run: *run}}}
	}
	code, err := tests(o, machines, *verbose, *deadline)
	if err != nil {
		fmt.Fprintln(os.Stderr, "test-kernel:", err)
		code = 1
	}
	os.Exit(code)
}

// tests runs each machine's shares beside the others'.
func tests(o *kernel.Options, machines [][]kernel.Share, verbose bool, deadline time.Duration) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	var err error
	if o.Source, err = os.Getwd(); err != nil {
		return 1, err
	}
	start := time.Now()
	var wg sync.WaitGroup
	reports, errs := make([]*kernel.Report, len(machines)), make([]error, len(machines))
	for i, shares := range machines {
		wg.Go(func() {
			reports[i], errs[i] = kernel.Run(ctx, o, shares, func(line string) {
				if m, ok := strings.CutPrefix(line, kernel.Marker); ok {
					fmt.Printf("%7.1fs machine %d: %s\n", time.Since(start).Seconds(), i+1, m)
				} else if verbose || strings.HasPrefix(strings.TrimSpace(line), "--- ") {
					fmt.Printf("%7.1fs %d  %s\n", time.Since(start).Seconds(), i+1, line)
				}
			})
		})
	}
	wg.Wait()
	code := 0
	for i, rep := range reports {
		if errs[i] != nil || rep == nil || !rep.OK() {
			code = 1
		}
		if rep != nil {
			rep.Print(os.Stdout)
			fmt.Printf("machine %d: Linux %s\n", i+1, rep.Kernel)
		}
	}
	fmt.Printf("%.0f s in all\n", time.Since(start).Seconds())
	return code, errors.Join(errs...)
}
