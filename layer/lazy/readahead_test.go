package lazy

import "testing"

// TestStreams: what is read ahead of whom, chunks.
func TestStreams(t *testing.T) {
	const chunks = 1000
	// Straight on, one by one: everything but the beginning was asked for before, once.
	var s streams
	fetched, disk := map[int]int{}, map[int]int{}
	late := 0
	for n := range chunks {
		if n > 2 && fetched[n] == 0 {
			late++
		}
		f, d := s.note(n, n, chunks)
		for k := f.from; k < f.to; k++ {
			if fetched[k]++; k <= n {
				t.Errorf("%d is fetched ahead when %d is read", k, n)
			}
		}
		for k := d.from; k < d.to; k++ {
			disk[k]++
		}
		if d.to-n > diskWindow+1 || f.to-n > maxWindow+1 {
			t.Errorf("at %d up to %d and %d", n, f.to, d.to)
		}
	}
	if late > 0 {
		t.Errorf("%d of %d were not fetched before they were read", late, chunks)
	}
	for n, k := range fetched {
		if k > 1 || disk[n] != 1 && n > 2 {
			t.Errorf("%d: fetched %d times, read from the disk %d times", n, k, disk[n])
		}
	}

	// A short run: no more ahead than half of what was read.
	s = streams{}
	ahead := 0
	for n := range 8 {
		f, _ := s.note(100+n, 100+n, chunks)
		ahead = max(ahead, f.to)
	}
	if ahead > 108+4 || ahead < 108 {
		t.Errorf("after 8 chunks up to %d", ahead)
	}

	// Here and there, always a little further on: nobody knows what comes next.
	s = streams{}
	for n := 0; n < chunks; n += 3 {
		if f, d := s.note(n, n, chunks); f.to > f.from || d.to > d.from {
			t.Errorf("at %d: %v and %v are read ahead for nothing", n, f, d)
		}
	}

	// Requests that overtake each other are one reader.
	s = streams{}
	most := 0
	for n := 0; n+8 <= 128; n += 8 {
		for _, first := range []int{n + 4, n} {
			f, _ := s.note(first, first+3, chunks)
			most = max(most, f.to-n)
		}
	}
	if most < maxWindow {
		t.Errorf("of requests out of order %d at most", most)
	}
}
