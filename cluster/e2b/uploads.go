package e2b

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Bounds of the files of templates.
const (
	maxUpload       = 2 << 30 // bytes of one archive, packed
	maxUnpacked     = 8 << 30 // bytes of one archive's files
	maxUnpackedFile = 200_000
	maxUploads      = 64 // archives that wait for their build
	uploadLife      = time.Hour
	uploadPath      = "/template-files/"
)

// uploads keeps archives of templates' files, on disk, until they are built or an hour has passed: TOKEN.json says what one is,
// TOKEN is the archive, once it is there.
type uploads struct {
	dir string

	mu      sync.Mutex
	byToken map[string]*upload
}

// upload is one archive: announced, then there.
type upload struct {
	template, hash string
	path           string
	there          bool
	forget         *time.Timer
	taking         *taking // nil = nobody sends it now
}

// taking is a request that sends an archive. One that comes later takes its place, as of a client that tries again: an announced
// archive is on disk twice at most.
type taking struct{ stop func() }

// uploadRecord is TOKEN.json.
type uploadRecord struct {
	Template, Hash string
	Announced      time.Time
}

const recordSuffix = ".json"

// load takes up what an earlier process kept, and removes what is half there or too old.
func (u *uploads) load() error {
	if err := os.MkdirAll(u.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(u.dir)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range entries {
		token, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		var r uploadRecord
		text, err := os.ReadFile(filepath.Join(u.dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if left := time.Until(r.Announced.Add(uploadLife)); err == nil && left > 0 && len(u.byToken) < maxUploads {
			_, err := os.Stat(filepath.Join(u.dir, token))
			u.add(token, r, min(left, uploadLife)).there = err == nil
		}
	}
	for _, e := range entries {
		if u.byToken[strings.TrimSuffix(e.Name(), recordSuffix)] == nil {
			_ = os.Remove(filepath.Join(u.dir, e.Name()))
		}
	}
	return nil
}

// add makes an upload known for a while. u.mu is held.
func (u *uploads) add(token string, r uploadRecord, life time.Duration) *upload {
	one := &upload{template: r.Template, hash: r.Hash, path: filepath.Join(u.dir, token)}
	one.forget = time.AfterFunc(life, func() { u.drop(func(x *upload) bool { return x == one }) })
	u.byToken[token] = one
	return one
}

// announce makes a place for an archive; the token leads to it. Error: 429.
func (u *uploads) announce(template, hash string) (token string, present bool, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.byToken {
		if one.template == template && one.hash == hash && one.there {
			return "", true, nil
		}
	}
	if len(u.byToken) >= maxUploads {
		return "", false, refused(http.StatusTooManyRequests, "%d archives wait for builds: build or wait", maxUploads)
	}
	token = rand.Text()
	r := uploadRecord{template, hash, time.Now()}
	text, err := json.Marshal(r)
	if err == nil {
		err = os.WriteFile(filepath.Join(u.dir, token+recordSuffix), text, 0o600)
	}
	if err != nil {
		return "", false, refused(http.StatusInsufficientStorage, "a place for the files could not be made: %v", err)
	}
	u.add(token, r, uploadLife)
	return token, false, nil
}

// drop forgets archives.
func (u *uploads) drop(which func(*upload) bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for token, one := range u.byToken {
		if which(one) {
			one.forget.Stop()
			delete(u.byToken, token)
			_ = os.Remove(one.path)
			_ = os.Remove(one.path + recordSuffix)
		}
	}
}

func (u *uploads) find(token string) *upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.byToken[token]
}

// take serves PUT of an archive: the token is all that clients send with it.
func (u *uploads) take(w http.ResponseWriter, r *http.Request) {
	one := u.find(strings.TrimPrefix(r.URL.Path, uploadPath))
	if one == nil {
		writeControl(w, refused(http.StatusNotFound, "there is no such upload, or its hour is over: ask for another address"))
		return
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(uploadLife))
	mine := &taking{func() { _ = rc.SetReadDeadline(time.Now()) }}
	u.mu.Lock()
	if one.taking != nil {
		one.taking.stop()
	}
	one.taking = mine
	u.mu.Unlock()
	defer func() {
		u.mu.Lock()
		if one.taking == mine {
			one.taking = nil
		}
		u.mu.Unlock()
	}()
	f, err := os.CreateTemp(u.dir, "part-")
	if err != nil {
		writeControl(w, err)
		return
	}
	defer os.Remove(f.Name())
	_, err = io.Copy(f, http.MaxBytesReader(w, r.Body, maxUpload))
	err = errors.Join(err, f.Close())
	var long *http.MaxBytesError
	if errors.As(err, &long) {
		err = refused(http.StatusRequestEntityTooLarge, "the archive is larger than %d bytes", long.Limit)
	} else if err != nil && r.Context().Err() == nil {
		err = refused(http.StatusInsufficientStorage, "the archive could not be kept: %v", err)
	}
	u.mu.Lock()
	switch {
	case one.taking != mine:
		err = refused(http.StatusConflict, "the archive is being sent once more, by another request: that one counts")
	case err != nil:
	case u.byToken[strings.TrimPrefix(r.URL.Path, uploadPath)] != one:
		err = refused(http.StatusNotFound, "the upload's hour is over, or its template was built meanwhile: ask for another address")
	default:
		err = os.Rename(f.Name(), one.path)
		one.there = err == nil
	}
	u.mu.Unlock()
	if err != nil {
		writeControl(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// unpack puts the files of an archive below dir/hash. Error: 400 for what is missing or none.
func (u *uploads) unpack(ctx context.Context, template, hash, dir string) error {
	var from string
	u.mu.Lock()
	for _, one := range u.byToken {
		if one.template == template && one.hash == hash && one.there {
			from = one.path
		}
	}
	u.mu.Unlock()
	if from == "" {
		return refused(http.StatusBadRequest, "the files %.12s... were not uploaded, or an hour ago", hash)
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	below := filepath.Join(dir, hash)
	if err := os.Mkdir(below, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) { // two steps with the same files
			return nil
		}
		return err
	}
	root, err := os.OpenRoot(below)
	if err != nil {
		return err
	}
	defer root.Close()
	b := bufio.NewReader(f)
	var in io.Reader = b
	if magic, _ := b.Peek(2); len(magic) == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		if in, err = gzip.NewReader(b); err != nil {
			return refused(http.StatusBadRequest, "the archive of a COPY is no gzip: %v", err)
		}
	}
	if err := untar(ctx, tar.NewReader(in), root); err != nil {
		return refused(http.StatusBadRequest, "the archive of a COPY: %v", err)
	}
	return nil
}

// untar unpacks beneath root, which links cannot leave: files, directories, links, nothing else.
func untar(ctx context.Context, r *tar.Reader, root *os.Root) error {
	left := int64(maxUnpacked)
	for n := 0; ; n++ {
		h, err := r.Next()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case n >= maxUnpackedFile || h.Size > left:
			return fmt.Errorf("it holds more than %d files or %d bytes", maxUnpackedFile, int64(maxUnpacked))
		}
		left -= h.Size
		name := strings.TrimPrefix(path.Join("/", h.Name), "/")
		if name == "" {
			continue
		}
		if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o700)
			if err == nil {
				err = root.Chmod(name, fs.FileMode(h.Mode)&0o777|0o700)
			}
		case tar.TypeReg:
			err = writeOut(root, name, fs.FileMode(h.Mode)&0o777, r)
		case tar.TypeSymlink:
			err = root.Symlink(h.Linkname, name)
		case tar.TypeLink:
			err = root.Link(strings.TrimPrefix(path.Join("/", h.Linkname), "/"), name)
		default:
			err = fmt.Errorf("%.100q is neither file, directory nor link", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func writeOut(root *os.Root, name string, mode fs.FileMode, from io.Reader) error {
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	if err == nil {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}
