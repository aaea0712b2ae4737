package e2b

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// cpuWindow is what the use of processors is measured over: the API counts microseconds, clients want per cent.
const cpuWindow = 100 * time.Millisecond

// metric is one measurement.
type metric struct {
	Timestamp     string  `json:"timestamp"`
	TimestampUnix int64   `json:"timestampUnix"`
	CPUCount      int64   `json:"cpuCount"`
	CPUUsedPct    float64 `json:"cpuUsedPct"`
	MemUsed       int64   `json:"memUsed"`
	MemTotal      int64   `json:"memTotal"`
	MemCache      int64   `json:"memCache"`
	DiskUsed      int64   `json:"diskUsed"`
	DiskTotal     int64   `json:"diskTotal"`
}

// measure reads a sandbox's cgroups and quota twice.
func (d *Door) measure(ctx context.Context, b *dsecv1.Sandbox) (metric, error) {
	ask := func() (*dsecv1.SandboxStats, error) {
		resp, err := d.sandboxes.GetSandboxStats(ctx, &dsecv1.GetSandboxStatsRequest{SandboxId: b.GetId()})
		return resp.GetStats(), err
	}
	first, err := ask()
	if err != nil {
		return metric{}, err
	}
	select {
	case <-ctx.Done():
		return metric{}, ctx.Err()
	case <-time.After(cpuWindow):
	}
	s, err := ask()
	if err != nil {
		return metric{}, err
	}
	at, took := s.GetAt().AsTime(), s.GetAt().AsTime().Sub(first.GetAt().AsTime())
	m := metric{
		Timestamp: at.Format(time.RFC3339Nano), TimestampUnix: at.Unix(), CPUCount: max(1, (b.GetSpec().GetLimits().GetCpuMillis()+999)/1000),
		MemUsed: s.GetMemoryBytes(), MemTotal: s.GetMemoryLimitBytes(), DiskUsed: s.GetDiskBytes(), DiskTotal: s.GetDiskLimitBytes(),
	}
	if took > 0 {
		m.CPUUsedPct = 100 * float64(s.GetCpuUsageUsec()-first.GetCpuUsageUsec()) / float64(took.Microseconds()) / float64(m.CPUCount)
	}
	return m, nil
}

// metrics answers with what is now, when that lies in what was asked for: no history is kept.
func (d *Door) metrics(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	now := time.Now().Unix()
	for name, outside := range map[string]func(int64) bool{"start": func(t int64) bool { return t > now }, "end": func(t int64) bool { return t < now }} {
		s := r.URL.Query().Get(name)
		if s == "" {
			continue
		}
		t, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return refused(http.StatusBadRequest, "%s %.40q: want a time in seconds", name, s)
		}
		if outside(t) {
			writeJSON(w, http.StatusOK, []metric{})
			return nil
		}
	}
	m, err := d.measure(r.Context(), b)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, []metric{m})
	return nil
}

func (d *Door) metricsOfMany(w http.ResponseWriter, r *http.Request) error {
	ids := commas(r.URL.Query()["sandbox_ids"])
	if len(ids) == 0 || len(ids) > maxPage {
		return refused(http.StatusBadRequest, "sandbox_ids names %d sandboxes: want 1 to %d", len(ids), maxPage)
	}
	out := map[string]metric{}
	for _, id := range ids {
		resp, err := d.sandboxes.GetSandbox(r.Context(), &dsecv1.GetSandboxRequest{SandboxId: id})
		if err != nil || resp.GetSandbox().GetState() == dsecv1.SandboxState_SANDBOX_STATE_STOPPED {
			continue // as for one that never was
		}
		m, err := d.measure(r.Context(), resp.GetSandbox())
		if err != nil {
			return err
		}
		out[id] = m
	}
	writeJSON(w, http.StatusOK, map[string]any{"sandboxes": out})
	return nil
}

type logLine struct {
	Timestamp string            `json:"timestamp"`
	Line      string            `json:"line"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// maxLogs bounds one answer.
const maxLogs = 1000

// logs are the recorded events of the sandbox, from start (milliseconds) or cursor (a sequence) on.
func (d *Door) logs(w http.ResponseWriter, r *http.Request) error {
	b, err := d.sandboxOf(r)
	if err != nil {
		return err
	}
	v := r.URL.Query()
	var start, cursor int64
	limit := int64(maxLogs)
	for name, to := range map[string]*int64{"start": &start, "cursor": &cursor, "limit": &limit} {
		if s := v.Get(name); s != "" {
			if *to, err = strconv.ParseInt(s, 10, 64); err != nil || *to < 0 {
				return refused(http.StatusBadRequest, "%s %.40q: want a number", name, s)
			}
		}
	}
	st, err := d.sandboxes.StreamEvents(r.Context(), &dsecv1.StreamEventsRequest{SandboxId: b.GetId(), AfterSequence: cursor})
	if err != nil {
		return err
	}
	defer st.Close()
	out := []logLine{}
	for int64(len(out)) < min(limit, maxLogs) && st.Receive() {
		e := st.Msg().GetEvent()
		at := e.GetAt().AsTime()
		text := strings.TrimSpace(e.GetType() + " " + e.GetMessage())
		if at.UnixMilli() < start || !strings.Contains(text, v.Get("search")) {
			continue
		}
		fields := map[string]string{"event": e.GetType(), "sequence": strconv.FormatInt(e.GetSequence(), 10)}
		for k, val := range e.GetAttributes() {
			fields[k] = val
		}
		out = append(out, logLine{at.Format(time.RFC3339Nano), text, "info", text, fields})
	}
	if err := st.Err(); err != nil && !errors.Is(err, io.EOF) && int64(len(out)) < min(limit, maxLogs) {
		return err
	}
	if strings.HasPrefix(r.URL.Path, "/v2/") {
		writeJSON(w, http.StatusOK, map[string]any{"logs": out})
	} else {
		writeJSON(w, http.StatusOK, map[string]any{"logs": out, "logEntries": out})
	}
	return nil
}

// health answers whether the sandbox runs. It wakes nothing.
func (d *Door) health(w http.ResponseWriter, r *http.Request) {
	t := targetOf(r.Context())
	resp, err := d.sandboxes.GetSandbox(r.Context(), &dsecv1.GetSandboxRequest{SandboxId: string(t.id)})
	if err == nil && resp.GetSandbox().GetState() != dsecv1.SandboxState_SANDBOX_STATE_RUNNING {
		s := strings.ToLower(strings.TrimPrefix(resp.GetSandbox().GetState().String(), "SANDBOX_STATE_"))
		err = refused(http.StatusBadGateway, "a running sandbox %s was not found: it is %s", t.id, s)
	}
	if err != nil {
		writeData(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// envs are the variables that every program of the sandbox gets.
func (d *Door) envs(w http.ResponseWriter, r *http.Request) {
	resp, err := d.sandboxes.GetSandbox(r.Context(), &dsecv1.GetSandboxRequest{SandboxId: string(targetOf(r.Context()).id)})
	if err != nil {
		writeData(w, r, err)
		return
	}
	env := resp.GetSandbox().GetSpec().GetEnv()
	if env == nil {
		env = map[string]string{}
	}
	writeJSON(w, http.StatusOK, env)
}

// insideMetrics is what the daemon that clients expect would say of itself.
func (d *Door) insideMetrics(w http.ResponseWriter, r *http.Request) {
	resp, err := d.sandboxes.GetSandbox(r.Context(), &dsecv1.GetSandboxRequest{SandboxId: string(targetOf(r.Context()).id)})
	if err != nil {
		writeData(w, r, err)
		return
	}
	m, err := d.measure(r.Context(), resp.GetSandbox())
	if err != nil {
		writeData(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"ts": m.TimestampUnix, "cpu_count": m.CPUCount, "cpu_used_pct": m.CPUUsedPct, "mem_used": m.MemUsed, "mem_total": m.MemTotal,
		"mem_used_mib": m.MemUsed >> 20, "mem_total_mib": m.MemTotal >> 20, "disk_used": m.DiskUsed, "disk_total": m.DiskTotal,
	})
}
