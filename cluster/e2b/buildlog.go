package e2b

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

type buildLog struct {
	Timestamp string `json:"timestamp"`
	Message   string `json:"message"`
	Level     string `json:"level"`
	Step      string `json:"step,omitempty"`
}

type buildReason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"`
}

// log adds lines; what is beyond the bound is left out, and the last line says so.
func (b *templateBuild) log(step int, level, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for line := range strings.Lines(text) {
		line = strings.ToValidUTF8(strings.TrimRight(line, "\r\n"), "\uFFFD")
		if len(b.lines) >= maxBuildLogs || b.bytes > maxBuildBytes {
			return
		}
		if b.bytes += min(len(line), maxLogLine); len(b.lines) == maxBuildLogs-1 || b.bytes > maxBuildBytes {
			line = "the rest of the log was not kept"
		}
		l := buildLog{Timestamp: time.Now().UTC().Format(time.RFC3339Nano), Message: line[:min(len(line), maxLogLine)], Level: level}
		if step > 0 {
			l.Step = strconv.Itoa(step)
		}
		b.lines = append(b.lines, l)
		b.keep(l)
	}
}

func (b *templateBuild) end(step int, err error) {
	if err != nil {
		b.log(step, "error", message(err))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status = "ready"
	if err != nil {
		b.status, b.reason = "error", &buildReason{Message: message(err)}
		if step > 0 {
			b.reason.Step = strconv.Itoa(step)
		}
	}
	b.closeLog()
	b.of.save(b)
}

// buildStatus tells how far a build is, with its log from an offset on.
func (d *Door) buildStatus(w http.ResponseWriter, r *http.Request) error {
	b, err := d.builds.find(r)
	if err != nil {
		return err
	}
	from := 0
	if s := r.URL.Query().Get("logsOffset"); s != "" {
		if from, err = strconv.Atoi(s); err != nil || from < 0 {
			return refused(http.StatusBadRequest, "logsOffset %.40q: want a number from 0", s)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	lines := b.lines
	if b.reason != nil || b.status == "ready" {
		if kept, err := b.read(); err == nil && !b.lost {
			lines = kept
		}
	}
	page := lines[min(from, len(lines)):min(from+maxLogPage, len(lines))]
	logs := make([]string, len(page))
	for k, l := range page {
		logs[k] = l.Message
	}
	out := map[string]any{"templateID": b.name, "buildID": b.id, "status": b.status, "logs": logs, "logEntries": append([]buildLog{}, page...)}
	if b.reason != nil {
		out["reason"] = b.reason
	}
	writeJSON(w, http.StatusOK, out)
	return nil
}
