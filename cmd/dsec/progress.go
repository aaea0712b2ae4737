package main

import (
	"io"
	"os"
	"sync"
	"time"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows one bar per stage on a terminal, and nothing elsewhere.
type progress struct {
	p    *mpb.Progress
	once sync.Once

	mu   sync.Mutex
	bars map[string]*mpb.Bar
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok || !isTerminal(f) {
		return &progress{}
	}
	return &progress{p: mpb.New(mpb.WithOutput(f), mpb.WithWidth(40)), bars: map[string]*mpb.Bar{}}
}

// bar returns the bar of a stage; total <= 0 = unknown.
func (p *progress) bar(stage string, total int64) *mpb.Bar {
	p.mu.Lock()
	defer p.mu.Unlock()
	b := p.bars[stage]
	if b == nil {
		b = p.p.AddBar(max(total, 0),
			mpb.PrependDecorators(decor.Name(printable(stage), decor.WCSyncSpaceR), decor.Any(sizes, decor.WCSyncSpace)),
			mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f")))
		p.bars[stage] = b
	}
	if total > 0 {
		b.SetTotal(total, false)
	}
	return b
}

// sizes says how much is done, and of how much where that is known.
func sizes(s decor.Statistics) string {
	if s.Total <= 0 {
		return bytesText(s.Current)
	}
	return bytesText(s.Current) + " / " + bytesText(s.Total)
}

func (p *progress) show(pr *dsecv1.ImportProgress) {
	if p.p == nil || pr == nil {
		return
	}
	p.bar(pr.GetStage(), pr.GetTotalBytes()).SetCurrent(pr.GetDoneBytes())
}

// reader shows what is read from r as stage "upload".
func (p *progress) reader(r io.Reader, size int64) io.Reader {
	if p.p == nil {
		return r
	}
	return &counted{r: r, b: p.bar("upload", size)}
}

// late shows what is read from r, once it takes longer than a moment. size < 0 = unknown.
func (p *progress) late(stage string, r io.Reader, size int64) io.Reader {
	if p.p == nil {
		return r
	}
	return &delayed{r: r, p: p, stage: stage, size: size, since: time.Now()}
}

// moment is what a copy may take without showing how far it is.
const moment = time.Second

type delayed struct {
	r     io.Reader
	p     *progress
	stage string
	size  int64
	done  int64
	since time.Time
	b     *mpb.Bar
}

func (d *delayed) Read(b []byte) (int, error) {
	n, err := d.r.Read(b)
	d.done += int64(n)
	if d.b == nil && time.Since(d.since) > moment {
		d.b = d.p.bar(d.stage, d.size)
	}
	if d.b != nil {
		d.b.SetCurrent(d.done)
	}
	return n, err
}

type counted struct {
	r io.Reader
	b *mpb.Bar
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.b.IncrBy(n)
	return n, err
}

// stop ends the display. It may be called again.
func (p *progress) stop() {
	if p.p == nil {
		return
	}
	p.once.Do(func() {
		p.mu.Lock()
		for _, b := range p.bars {
			b.EnableTriggerComplete()
			b.SetTotal(-1, true)
		}
		p.mu.Unlock()
		p.p.Wait()
	})
}
