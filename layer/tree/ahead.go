package tree

import (
	"io"
	"sync"
)

// ahead reads a stream in a goroutine of its own, a few buffers ahead of its reader.
type ahead struct {
	full  chan block
	free  chan []byte
	stop  chan struct{}
	once  sync.Once
	wait  sync.WaitGroup
	block block
	close func()
}

type block struct {
	data []byte
	buf  []byte
	err  error
}

// readAhead begins to read r. The returned reader's Close waits for the goroutine, then calls done; it must
// be called, and r's source must not block for ever.
func readAhead(r io.Reader, done func()) io.ReadCloser {
	a := &ahead{full: make(chan block, 4), free: make(chan []byte, 4), stop: make(chan struct{}), close: done}
	for range cap(a.free) {
		a.free <- make([]byte, 256<<10)
	}
	a.wait.Go(func() { a.run(r) })
	return a
}

func (a *ahead) run(r io.Reader) {
	defer close(a.full)
	for {
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.stop:
			return
		}
		n := 0
		var err error
		for n < len(buf) && err == nil {
			var got int
			got, err = r.Read(buf[n:])
			n += got
		}
		select {
		case a.full <- block{data: buf[:n], buf: buf, err: err}:
		case <-a.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

func (a *ahead) Read(p []byte) (int, error) {
	for len(a.block.data) == 0 {
		if a.block.err != nil {
			return 0, a.block.err
		}
		if a.block.buf != nil {
			a.free <- a.block.buf
		}
		b, ok := <-a.full
		if !ok {
			b.err = io.ErrClosedPipe
		}
		a.block = b
	}
	n := copy(p, a.block.data)
	a.block.data = a.block.data[n:]
	return n, nil
}

func (a *ahead) Close() error {
	a.once.Do(func() {
		close(a.stop)
		a.wait.Wait()
		a.close()
	})
	return nil
}
