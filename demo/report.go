package main

import (
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/opendsec/dsec/bench/measure"
)

// report prints the table; it is an error when a rollout was not as it must be.
func report(o options, rs []result) error {
	var creates, execs []time.Duration
	var mem []int64
	passed := 0
	for _, r := range rs {
		if r.OK {
			passed++
			mem = append(mem, r.Memory)
		}
		if r.Create > 0 {
			creates = append(creates, r.Create)
		}
		execs = append(execs, r.Execs...)
	}
	if o.json {
		if err := json.NewEncoder(os.Stdout).Encode(rs); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "\nSEED\tRESULT\tSECONDS\tTRIALS\tEDIT / WHY")
		for _, r := range rs {
			word, note := "passed", r.Edit
			if !r.OK {
				word, note = "failed", r.Why
			}
			fmt.Fprintf(w, "%d\t%s\t%.1f\t%d\t%s\n", r.Seed, word, r.Seconds, r.Trials, note)
		}
		fmt.Fprintf(w, "\npassed %d\tfailed %d\t\t\t\n", passed, len(rs)-passed)
		fmt.Fprintf(w, "create\tp50 %s\tp99 %s\t\t(%d at once)\n", ms(measure.Percentile(creates, 50)), ms(measure.Percentile(creates, 99)), o.n)
		fmt.Fprintf(w, "exec\tp50 %s\tp99 %s\t\t(round trip of `true`, all at once)\n", ms(measure.Percentile(execs, 50)), ms(measure.Percentile(execs, 99)))
		fmt.Fprintf(w, "memory\tp50 %d MiB\tmax %d MiB\t\t(peak of a sandbox)\n", measure.Percentile(mem, 50)>>20, measure.Percentile(mem, 100)>>20)
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if passed != len(rs) {
		return fmt.Errorf("%d of %d rollouts failed", len(rs)-passed, len(rs))
	}
	return nil
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }
