package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/layer/lazy"
)

// usage is what has been used so far, seconds of processors' time: a burst's sandboxes, the node, and the store that stands in for
// one elsewhere all run on this machine.
type usage struct {
	machine measure.Machine
	blobd   float64
	store   float64 // the S3 service and, in this process, the throttle before it
	blobds  lazy.Stats
}

// usageNow reads the counters.
func (r *remote) usageNow(ctx context.Context) (u usage, err error) {
	if u.machine, err = measure.MachineNow(); err != nil {
		return u, err
	}
	pid, err := r.blobd(ctx)
	if err != nil {
		return u, err
	}
	if u.blobd, err = processSeconds(pid); err != nil {
		return u, err
	}
	if u.store, err = processSeconds(r.store.PID()); err != nil {
		return u, err
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return u, err
	}
	u.store += float64(own.Utime.Nano()+own.Stime.Nano()) / 1e9
	return u, r.ask(ctx, "/v1/lazy/stats", &u.blobds)
}

// processSeconds is what a process has used.
func processSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name, in parentheses, may hold anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	if err1 != nil || err2 != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	return (user + system) / measure.Ticks, nil
}

// blobd is the process that serves layers.
func (r *remote) blobd(ctx context.Context) (int, error) {
	text, err := r.Run(ctx, "status", "--json", "--state", r.state)
	var st struct {
		Up struct {
			Roles []struct {
				Name string
				PID  int
			}
		}
	}
	if jerr := json.Unmarshal([]byte(text), &st); jerr != nil {
		return 0, fmt.Errorf("status: %w, %w", err, jerr)
	}
	for _, p := range st.Up.Roles {
		if p.Name == "blobd" {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("no blobd in %s", text)
}

// ask asks blobd.
func (r *remote) ask(ctx context.Context, path string, to any) error {
	return askBlobd(ctx, filepath.Join(r.state, "run", "blobd.sock"), path, to)
}

func askBlobd(ctx context.Context, socket, path string, to any) error {
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://blobd"+path, nil)
	if err != nil {
		return err
	}
	resp, err := h.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("blobd: %s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(to)
}

// traces adds up what was read of every layer on the node: of its data, and of the chunks in which it lies; bytes.
func traces(ctx context.Context, socket string) (data, read, chunks int64, err error) {
	var all []string
	if err := askBlobd(ctx, socket, "/v1/lazy/layers", &all); err != nil {
		return 0, 0, 0, err
	}
	for _, d := range all {
		var t lazy.Trace
		if err := askBlobd(ctx, socket, "/v1/lazy/layers/"+d+"/trace", &t); err != nil {
			return 0, 0, 0, err
		}
		data, read, chunks = data+t.DataBytes, read+t.ReadBytes, chunks+t.ChunkBytes
	}
	return data, read, chunks, nil
}

// partsOf says what a phase was made of, as rows: name_cpu, and so on.
func (b *bench) partsOf(name string, from, to usage) {
	row := func(what string, seconds float64, note string) {
		r := measure.FromValues(name+what, "s", []float64{seconds}, 0)
		r.Note = note
		b.add(r)
	}
	row("_cpu", to.machine.Busy-from.machine.Busy, fmt.Sprintf("of %d processors, everything on the machine", runtime.NumCPU()))
	row("_cpu_store", to.store-from.store, "of it the S3 service and the throttle, which stand for another machine")
	row("_cpu_blobd", to.blobd-from.blobd, "of it blobd: fetching, verifying, keeping")
	row("_idle", to.machine.Idle-from.machine.Idle, "of all processors")
	row("_disk_wait", to.machine.Wait-from.machine.Wait, "idle beside that, while something waited for the disk")
}
