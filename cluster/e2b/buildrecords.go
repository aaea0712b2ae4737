package e2b

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Builds are kept in files, so that whoever waits for one hears how it ended though the service was restarted: ID.json
// says what it is and how it goes, ID.log is its log, a line of JSON each.

// labelBuild is on the sandboxes in which a build's steps run: its id.
const labelBuild = "e2b.build"

// interrupted is why a build failed whose service went away.
const interrupted = "the service was restarted while the template was being built: build it again, and steps that were done are not done again"

// buildRecord is ID.json.
type buildRecord struct {
	ID, Name  string
	Tags      []string
	CPUs      int64
	Memory    int64
	Announced time.Time
	Status    string
	Reason    *buildReason `json:",omitempty"`
}

func (bs *builds) file(id, suffix string) string { return filepath.Join(bs.dir, id+suffix) }

// save keeps what is known of a build. What cannot be kept is still right while the process lives. b.mu is held, or nobody
// else knows b.
func (bs *builds) save(b *templateBuild) {
	text, err := json.Marshal(buildRecord{b.id, b.name, b.tags, b.cpus, b.memory, b.announced, b.status, b.reason})
	if err == nil {
		err = os.WriteFile(bs.file(b.id, ".new"), text, 0o600)
	}
	if err == nil {
		err = os.Rename(bs.file(b.id, ".new"), bs.file(b.id, ".json"))
	}
	if err != nil {
		bs.log.Warn("keep a template's build: it will not outlive this process", "build", b.id, "err", err)
	}
}

func (bs *builds) removeFiles(id string) {
	for _, suffix := range []string{".new", ".json", ".log"} {
		_ = os.Remove(bs.file(id, suffix))
	}
}

// load reads what an earlier process kept, ends what it was doing, and returns the builds that it did not end itself.
func (bs *builds) load() (broken []string, err error) {
	if err := os.MkdirAll(bs.dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(bs.dir)
	if err != nil {
		return nil, err
	}
	var all []*templateBuild
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		var r buildRecord
		text, err := os.ReadFile(bs.file(id, ".json"))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil || r.ID != id {
			bs.log.Warn("a template's build cannot be read", "build", id, "err", err)
			bs.removeFiles(id)
			continue
		}
		all = append(all, &templateBuild{
			of: bs, id: r.ID, name: r.Name, tags: r.Tags, cpus: r.CPUs, memory: r.Memory, announced: r.Announced, status: r.Status, reason: r.Reason,
		})
	}
	slices.SortFunc(all, func(x, y *templateBuild) int { return y.announced.Compare(x.announced) })
	for k, b := range all {
		if k >= maxBuilds {
			bs.removeFiles(b.id)
			continue
		}
		bs.byID[b.id] = b
		if b.status != "building" {
			continue
		}
		broken = append(broken, b.id)
		b.lines, _ = b.read()
		for _, l := range b.lines {
			b.bytes += len(l.Message)
		}
		b.end(0, errors.New(interrupted))
	}
	for _, e := range entries { // logs without a build, half-written files
		id, suffix, _ := strings.Cut(e.Name(), ".")
		if suffix == "new" || suffix == "log" && bs.byID[id] == nil {
			_ = os.Remove(filepath.Join(bs.dir, e.Name()))
		}
	}
	return broken, nil
}

// keep appends a line to the log's file. b.mu is held.
func (b *templateBuild) keep(l buildLog) {
	if b.file == nil {
		f, err := os.OpenFile(b.of.file(b.id, ".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			b.lost = true
			return
		}
		b.file = f
	}
	text, err := json.Marshal(l)
	if err == nil {
		_, err = b.file.Write(append(text, '\n'))
	}
	b.lost = b.lost || err != nil
}

// closeLog ends the log's file; from then on it is read from there, unless it could not be kept. b.mu is held.
func (b *templateBuild) closeLog() {
	if b.file != nil {
		b.lost = b.file.Close() != nil || b.lost
		b.file = nil
	}
	if !b.lost {
		b.lines = nil
	}
}

// read returns the log as the file has it; a torn last line is left out.
func (b *templateBuild) read() ([]buildLog, error) {
	f, err := os.Open(b.of.file(b.id, ".log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []buildLog
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16*maxLogLine) // JSON writes one byte as up to six
	for lines.Scan() && len(out) < maxBuildLogs {
		var l buildLog
		if json.Unmarshal(lines.Bytes(), &l) == nil {
			out = append(out, l)
		}
	}
	return out, lines.Err()
}

// clear stops the sandboxes of builds that were interrupted: nobody packs what they did.
func (d *Door) clear(ctx context.Context, broken []string) {
	for _, id := range broken {
		for end := time.Now().Add(clearPatience); ; {
			_, err := d.sandboxes.StopSandboxes(ctx, &dsecv1.StopSandboxesRequest{Labels: map[string]string{labelBuild: id}})
			if err == nil {
				break
			}
			if ctx.Err() != nil || time.Now().After(end) {
				d.o.Log.Warn("stop the sandboxes of an interrupted build; they end by themselves", "build", id, "err", err)
				break
			}
			select { // the edge may not be there yet
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

const clearPatience = time.Minute
