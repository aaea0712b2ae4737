// Package measure times things and says what came out: percentiles, failures, and ratios against floors and
// peers that ran in the same run, because the machines that it runs on are shared and noisy.
package measure

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// Row is one figure.
type Row struct {
	Name     string             `json:"name"`
	N        int                `json:"n"`
	P50      float64            `json:"p50"`
	P90      float64            `json:"p90"`
	P99      float64            `json:"p99"`
	Max      float64            `json:"max"`
	Unit     string             `json:"unit"`
	Failures int                `json:"failures"`
	Ratios   map[string]float64 `json:"ratios,omitempty"` // this p50 divided by the p50 of the row so named
	Note     string             `json:"note,omitempty"`
}

// Percentile is the p-th percentile (nearest rank) of values in any order; the zero value when there are none.
func Percentile[T ~int64 | ~float64](v []T, p int) T {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[max(0, (len(v)*p+99)/100-1)]
}

// FromDurations makes a row in milliseconds.
func FromDurations(name string, v []time.Duration, failures int) Row {
	ms := make([]float64, len(v))
	for i, d := range v {
		ms[i] = float64(d) / 1e6
	}
	return FromValues(name, "ms", ms, failures)
}

// FromValues makes a row of values.
func FromValues(name, unit string, v []float64, failures int) Row {
	return Row{Name: name, N: len(v), Unit: unit, Failures: failures,
		P50: Percentile(v, 50), P90: Percentile(v, 90), P99: Percentile(v, 99), Max: Percentile(v, 100)}
}

// Times runs f n times, at most `at` at once, all lanes starting together, and returns how long each took.
// Failed runs are counted, the first error is kept, and their times are left out.
func Times(ctx context.Context, n, at int, f func(ctx context.Context, i int) error) (times []time.Duration, failures int, first error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := 0
	for range at {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= n || ctx.Err() != nil {
					return
				}
				start := time.Now()
				err := f(ctx, i)
				d := time.Since(start)
				mu.Lock()
				if err != nil {
					failures++
					if first == nil {
						first = err
					}
				} else {
					times = append(times, d)
				}
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	return times, failures, first
}

// Bursts starts size runs of f at the same instant, waits for all of them, and does so n times; rest is called after
// each burst, outside of the times. It returns how long each run took. Failed runs are counted as in Times; an error of
// rest ends it.
func Bursts(ctx context.Context, n, size int, f func(ctx context.Context, i int) error, rest func(context.Context) error) (times []time.Duration, failures int, first error) {
	for burst := range n {
		var wg sync.WaitGroup
		took, errs := make([]time.Duration, size), make([]error, size)
		begin := make(chan struct{})
		for i := range size {
			wg.Go(func() {
				<-begin
				start := time.Now()
				errs[i] = f(ctx, burst*size+i)
				took[i] = time.Since(start)
			})
		}
		close(begin)
		wg.Wait()
		for i, err := range errs {
			switch {
			case err == nil:
				times = append(times, took[i])
			default:
				failures++
				first = cmp.Or(first, err)
			}
		}
		if err := rest(ctx); err != nil {
			return times, failures, cmp.Or(first, err)
		}
		if ctx.Err() != nil {
			return times, failures, cmp.Or(first, ctx.Err())
		}
	}
	return times, failures, first
}

// Ratio notes this row's p50 divided by another's.
func (r *Row) Ratio(to Row) {
	if to.P50 == 0 {
		return
	}
	if r.Ratios == nil {
		r.Ratios = map[string]float64{}
	}
	r.Ratios[to.Name] = r.P50 / to.P50
}

// Print writes the table.
func Print(w io.Writer, rows []Row) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "name\tn\tp50\tp90\tp99\tmax\tunit\tfail\t  ratios\t")
	for _, r := range rows {
		keys := make([]string, 0, len(r.Ratios))
		for k := range r.Ratios {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		ratios := ""
		for _, k := range keys {
			ratios += fmt.Sprintf("  %.2fx %s", r.Ratios[k], k)
		}
		fmt.Fprintf(tw, "%s\t%d\t%.3g\t%.3g\t%.3g\t%.3g\t%s\t%d\t%s %s\t\n", r.Name, r.N, r.P50, r.P90, r.P99, r.Max, r.Unit, r.Failures, ratios, r.Note)
	}
	return tw.Flush()
}

// Save writes the rows as JSON.
func Save(path string, rows []Row) error {
	b, err := json.MarshalIndent(rows, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}
