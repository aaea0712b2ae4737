package layertest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opendsec/dsec/internal/linux"
)

// RandomTree fills dir with about n objects of all kinds that a layer may hold, the same for the same seed. It must
// run as root.
func RandomTree(t testing.TB, dir string, seed uint64, n int) {
	t.Helper()
	r := &randomTree{t: t, rng: rand.New(rand.NewPCG(seed, 2)), dirs: []string{dir}}
	for k := range n {
		r.object(k)
	}
	// Times last, children before their directories: making a child changes them.
	for k := len(r.dirs) - 1; k >= 0; k-- {
		r.dress(r.dirs[k], true)
	}
}

type randomTree struct {
	t     testing.TB
	rng   *rand.Rand
	dirs  []string
	files []string
}

func (r *randomTree) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *randomTree) object(k int) {
	name := fmt.Sprintf("%c%d", 'A'+r.rng.IntN(50), k)
	switch r.rng.IntN(10) {
	case 0:
		name += strings.Repeat("long", 60)
	case 1:
		name += "\xff\n ü'\""
	}
	path := filepath.Join(r.dirs[r.rng.IntN(len(r.dirs))], strings.ReplaceAll(name, "/", "_"))
	switch kind := r.rng.IntN(12); {
	case kind < 2:
		r.check(os.Mkdir(path, 0o755))
		r.dirs = append(r.dirs, path)
		return
	case kind == 2:
		r.check(os.Symlink(strings.Repeat("../t", 1+r.rng.IntN(1000))[:1+r.rng.IntN(4000)%4], path))
	case kind == 3:
		r.check(os.Symlink(strings.Repeat("target/", 1+r.rng.IntN(580)), path))
	case kind == 4:
		r.check(syscall.Mkfifo(path, 0o600))
	case kind == 5 && len(r.files) > 0:
		r.check(os.Link(r.files[r.rng.IntN(len(r.files))], path))
		return
	case kind == 6:
		r.sparse(path)
		r.files = append(r.files, path)
	default:
		data := make([]byte, r.rng.IntN([]int{1, 50, 5000, 2_500_000}[r.rng.IntN(4)]))
		for n := range data {
			data[n] = byte(r.rng.Uint32())
		}
		r.check(os.WriteFile(path, data, 0o600))
		r.files = append(r.files, path)
	}
	r.dress(path, false)
}

func (r *randomTree) sparse(path string) {
	f, err := os.Create(path)
	r.check(err)
	size := r.rng.Int64N(8 << 20)
	r.check(f.Truncate(size))
	for range r.rng.IntN(4) {
		_, err := f.WriteAt([]byte("data in the middle"), r.rng.Int64N(size+1))
		r.check(err)
	}
	r.check(f.Close())
}

// dress gives an object owner, mode, attributes and time.
func (r *randomTree) dress(path string, isDir bool) {
	st, err := os.Lstat(path)
	r.check(err)
	r.check(os.Lchown(path, r.rng.IntN(3)*70_000, r.rng.IntN(3)*1000))
	if st.Mode()&os.ModeSymlink == 0 {
		r.check(syscall.Chmod(path, r.rng.Uint32N(1<<12)))
	}
	if st.Mode().IsRegular() || isDir {
		for n := range r.rng.IntN(3) {
			r.check(linux.SetLxattr(path, fmt.Sprintf("user.a%d", n), strings.Repeat("value", r.rng.IntN(100))))
		}
		r.check(linux.SetLxattr(path, "trusted.t", "\x00\x01binary"))
	}
	if st.Mode().IsRegular() && r.rng.IntN(4) == 0 {
		// cap_net_bind_service+ep, revision 2
		r.check(linux.SetLxattr(path, "security.capability", "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	}
	when := time.Unix(r.rng.Int64N(1<<31), r.rng.Int64N(1e9))
	r.check(linux.SetTimes(path, when))
}
