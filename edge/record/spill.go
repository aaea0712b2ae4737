package record

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// segment is one file of a command's tail.
type segment struct {
	start, end int64 // offsets of the output in it
	bytes      int64 // of output; less than end-start when it holds a gap
	size       int64 // of the file
}

// spillFile is the one segment file that is held open, that of the last writer: a sandbox costs at most one
// descriptor more, however many commands write.
type spillFile struct {
	f     *os.File
	order int64
	start int64
}

func (s *spillFile) close() {
	if s.f != nil {
		_ = s.f.Close()
	}
	*s = spillFile{}
}

func (l *Log) outDir() string { return filepath.Join(l.dir, "out") }

func (l *Log) segmentPath(order, start int64) string {
	return filepath.Join(l.outDir(), fmt.Sprintf("%d.%d", order, start))
}

// spillOutput appends to the command's newest segment. Two segments are kept: when the newest is full the
// older one goes.
func (l *Log) spillOutput(c *command, offset int64, stream Stream, data []byte) error {
	o := c.out
	n := len(o.segments)
	// Frames of a few bytes are mostly framing: they count for what they take on the disk, at a quarter.
	if n == 0 || o.segments[n-1].bytes >= o.tail || o.segments[n-1].size >= 4*o.tail {
		if n == 2 {
			if err := l.dropSegment(c, 0); err != nil {
				return err
			}
		}
		o.segments = append(o.segments, segment{start: offset, end: offset})
	}
	seg := &o.segments[len(o.segments)-1]
	f, err := l.openSpill(c.order, seg.start)
	if err != nil {
		return err
	}
	b := buffers.Get().(*[]byte)
	defer putBuffer(b)
	*b = appendOutput(*b, c.order, offset, stream, data)
	if _, err := f.WriteAt(*b, seg.size); err != nil {
		_ = f.Truncate(seg.size)
		return fmt.Errorf("write output segment: %w", err)
	}
	seg.size += int64(len(*b))
	seg.bytes += int64(len(data))
	seg.end = offset + int64(len(data))
	l.spilled += int64(len(*b))
	return nil
}

func (l *Log) openSpill(order, start int64) (*os.File, error) {
	if l.spill.f != nil && l.spill.order == order && l.spill.start == start {
		return l.spill.f, nil
	}
	l.spill.close()
	open := func() (*os.File, error) {
		return os.OpenFile(l.segmentPath(order, start), os.O_CREATE|os.O_RDWR, 0o600)
	}
	f, err := open()
	if errors.Is(err, os.ErrNotExist) {
		if err := os.Mkdir(l.outDir(), 0o700); err != nil {
			return nil, fmt.Errorf("make output directory: %w", err)
		}
		f, err = open()
	}
	if err != nil {
		return nil, fmt.Errorf("open output segment: %w", err)
	}
	l.spill = spillFile{f: f, order: order, start: start}
	return f, nil
}

func (l *Log) dropSegment(c *command, i int) error {
	s := c.out.segments[i]
	if l.spill.order == c.order && l.spill.start == s.start {
		l.spill.close()
	}
	if err := os.Remove(l.segmentPath(c.order, s.start)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("drop output segment: %w", err)
	}
	l.spilled -= s.size
	c.out.segments = append(c.out.segments[:i], c.out.segments[i+1:]...)
	return nil
}

func (l *Log) dropSegments(c *command) {
	for c.out != nil && len(c.out.segments) > 0 {
		if l.dropSegment(c, 0) != nil {
			return // the directory goes with the sandbox
		}
	}
}

func (l *Log) syncSegments(c *command) error {
	for _, s := range c.out.segments {
		f, err := os.OpenFile(l.segmentPath(c.order, s.start), os.O_RDWR, 0)
		if err == nil {
			err = f.Sync()
			_ = f.Close()
		}
		if err != nil {
			return fmt.Errorf("sync output segment: %w", err)
		}
	}
	return nil
}

// loadSegments finds the segments that an earlier process left, cuts torn ends off, and removes those of
// commands that are not kept.
func (l *Log) loadSegments() error {
	entries, err := os.ReadDir(l.outDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list output segments: %w", err)
	}
	for _, e := range entries {
		order, start, ok := parseSegment(e.Name())
		c := l.commands[order]
		if !ok || c == nil || c.out != nil && c.out.dropped {
			if err := os.Remove(filepath.Join(l.outDir(), e.Name())); err != nil {
				return fmt.Errorf("drop output segment: %w", err)
			}
			continue
		}
		seg, err := l.loadSegment(order, start)
		if err != nil {
			return err
		}
		l.addSegment(c, seg)
	}
	return nil
}

func parseSegment(name string) (order, start int64, ok bool) {
	a, b, _ := strings.Cut(name, ".")
	order, err1 := strconv.ParseInt(a, 10, 64)
	start, err2 := strconv.ParseInt(b, 10, 64)
	return order, start, err1 == nil && err2 == nil
}

func (l *Log) loadSegment(order, start int64) (segment, error) {
	seg := segment{start: start, end: start}
	f, err := os.OpenFile(l.segmentPath(order, start), os.O_RDWR, 0)
	if err != nil {
		return seg, fmt.Errorf("open output segment: %w", err)
	}
	defer f.Close()
	s := newScanner(f, 0, -1)
	defer s.close()
	for {
		fr, err := s.next(false)
		if errors.Is(err, io.EOF) {
			return seg, nil
		}
		if err == nil && fr.kind == frameOutput {
			_, offset, _, data, err := fr.output()
			if err == nil {
				seg.end = offset + int64(len(data))
				seg.bytes += int64(len(data))
				seg.size = s.pos
				continue
			}
		}
		if err != nil && !errors.Is(err, errTorn) {
			return seg, fmt.Errorf("read output segment: %w", err)
		}
		return seg, f.Truncate(seg.size)
	}
}

func (l *Log) addSegment(c *command, seg segment) {
	if c.out == nil {
		c.out = new(output)
		c.out.head, c.out.tail = l.bounds()
	}
	o := c.out
	o.headFull = true
	o.end = max(o.end, seg.end)
	l.spilled += seg.size
	i := len(o.segments)
	for i > 0 && o.segments[i-1].start > seg.start {
		i--
	}
	o.segments = append(o.segments[:i], append([]segment{seg}, o.segments[i:]...)...)
}
