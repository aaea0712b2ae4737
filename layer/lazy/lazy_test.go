package lazy_test

import (
	"path/filepath"
	"testing"

	"github.com/opendsec/dsec/layer"
)

func TestReadsOnDemand(t *testing.T) {
	r := newRig(t, nil)
	r.start()
	const size = 20<<20 + 777
	s := r.publish(1, size)
	at := r.mount(s.Digest)
	file := filepath.Join(at, "file-1")
	if st := r.server.Stats(); st.FetchedBytes != 0 {
		t.Errorf("%d bytes were fetched by mounting", st.FetchedBytes)
	}
	got, err := readAt(file, 10<<20, 4096)
	if err != nil || string(got) != string(s.Data[10<<20:10<<20+4096]) {
		t.Fatalf("a piece: %v, or other content", err)
	}
	st := r.server.Stats()
	if st.FetchedBytes == 0 || st.FetchedBytes > 4<<20 {
		t.Errorf("%d bytes were fetched for a piece", st.FetchedBytes)
	}
	same(t, file, s.Data[:size])
	st = r.server.Stats()
	if st.FetchedBytes != int64(len(s.Data)) {
		t.Errorf("%d bytes fetched in all, the data has %d", st.FetchedBytes, len(s.Data))
	}
	t.Logf("%+v", st)
	// Again from the cache, and from the cache of an earlier server.
	for range 2 {
		r.dropPages(s.Digest, file)
		before := r.store.Requests.Load()
		same(t, file, s.Data[:size])
		if n := r.store.Requests.Load(); n != before {
			t.Errorf("%d requests for what is in the cache", n-before)
		}
		t.Logf("%+v", r.server.Stats())
		r.halt()
		r.start()
	}
	tr, err := r.server.Trace(s.Digest)
	if err != nil || tr.ReadBytes != int64(len(s.Data)) || len(tr.Chunks) != 1 || tr.Chunks[0] != [2]int{0, len(s.Data)/layer.ChunkSize + 1} {
		t.Errorf("trace %+v, %v", tr, err)
	}
}
