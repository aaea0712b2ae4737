package sandboxtest

import (
	"bytes"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

func (s *suite) files(t *testing.T) {
	b := s.Create(t, nil)
	f := s.Files
	t.Run("ReadAndWrite", func(t *testing.T) {
		data := make([]byte, 3<<20+17)
		_, _ = rand.Read(data)
		b.Write("/tmp/blob", string(data))
		if b.Read("/tmp/blob") != string(data) {
			t.Error("the file changed on its way")
		}
		if status, part := b.Do("GET", "files?path=/tmp/blob&offset=1048576&length=100", nil); status != 200 || part != string(data[1<<20:1<<20+100]) {
			t.Errorf("part: %d, %d bytes", status, len(part))
		}
		b.Write("/tmp/blob", "short")
		b.WantShell("cat /tmp/blob", "short")
		b.Write("/tmp/empty", "")
		if got := b.Read("/tmp/empty"); got != "" {
			t.Errorf("empty file holds %q", got)
		}
	})
	t.Run("ModeAndParents", func(t *testing.T) {
		if status, answer := b.Do("PUT", "files?path=/tmp/a/b/c.sh&mode=0751&parents=true", strings.NewReader("x")); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, answer)
		}
		st, err := f.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: "/tmp/a/b/c.sh"})
		if err != nil || st.File.Mode != 0o751 || st.File.Size != 1 || st.File.Type != "file" {
			t.Errorf("%v, %v", st, err)
		}
		if s.caps.Real {
			b.Do("PUT", "files?path=/tmp/owned&owner=nobody:nogroup", strings.NewReader("x"))
			b.WantShell("stat -c %U:%G /tmp/owned", "nobody:nogroup\n")
		}
	})
	t.Run("Attributes", func(t *testing.T) {
		s.real(t)
		if status, answer := b.Do("PUT", "files?path=/tmp/marked&user=nobody&attribute=a=1%3D%00%FF&attribute=e2b.b=", strings.NewReader("x")); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, answer)
		}
		stat := func(path string) map[string][]byte {
			t.Helper()
			st, err := f.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: path, Attributes: true})
			if err != nil {
				t.Fatal(err)
			}
			return st.File.Attributes
		}
		if got := stat("/tmp/marked"); len(got) != 2 || string(got["a"]) != "1=\x00\xff" || got["e2b.b"] == nil {
			t.Errorf("attributes %q", got)
		}
		b.WantShell("mkdir /tmp/marks && mv /tmp/marked /tmp/marks && touch /tmp/marks/plain && ln -s marked /tmp/marks/link && mkfifo /tmp/marks/pipe", "")
		list, err := f.ListDirectory(b.Ctx, &dsecv1.ListDirectoryRequest{SandboxId: b.ID, Path: "/tmp/marks", Attributes: true})
		if err != nil || len(list.GetFiles()) != 4 {
			t.Fatalf("%v, %v", list, err)
		}
		for _, i := range list.GetFiles() {
			if marked := i.GetPath() == "/tmp/marks/marked"; marked != (len(i.GetAttributes()) == 2) {
				t.Errorf("%s: %q", i.GetPath(), i.GetAttributes())
			}
		}
		if got := stat("/tmp/marks/link"); len(got) != 2 { // followed
			t.Errorf("through the link: %q", got)
		}
		b.Write("/tmp/marks/marked", "anew") // a new file, which has what it is given
		if got := stat("/tmp/marks/marked"); len(got) != 0 {
			t.Errorf("written anew: %q", got)
		}
		// Not readable for the user, and so not its attributes.
		b.Do("PUT", "files?path=/tmp/secret&mode=0600&attribute=a=1", strings.NewReader("x"))
		st, err := f.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: "/tmp/secret", User: "nobody", Attributes: true})
		if err != nil || len(st.GetFile().GetAttributes()) > 0 {
			t.Errorf("another's file: %v, %v", st, err)
		}
		for query, says := range map[string]string{
			"attribute=a": "NAME=VALUE", "attribute==1": "NAME=VALUE", "attribute=a%00b=1": "NAME=VALUE",
			"attribute=" + strings.Repeat("n", 251) + "=1":  "250 bytes",
			"attribute=a=" + strings.Repeat("v", 8192):      "8192 bytes",
			strings.Repeat("attribute=a=1&", 65) + "mode=0": "64 attributes",
		} {
			if status, answer := b.Do("PUT", "files?path=/tmp/bad&"+query, strings.NewReader("x")); status != 400 || !strings.Contains(answer, says) {
				t.Errorf("%.40s: %d %s", query, status, answer)
			}
		}
		if status, answer := b.Do("PUT", "files?path=/dev/shm/x&attribute=a=1", strings.NewReader("x")); status/100 == 5 { // where a file system keeps none, it says so
			t.Errorf("%d %s", status, answer)
		}
	})
	t.Run("Names", func(t *testing.T) {
		name := "/tmp/sp ace\n\xff\xfe%&?"
		b.Write(name, "odd")
		if got := b.Read(name); got != "odd" {
			t.Errorf("got %q", got)
		}
		list, err := f.ListDirectory(b.Ctx, &dsecv1.ListDirectoryRequest{SandboxId: b.ID, Path: "/tmp"})
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, x := range list.Files {
			found = found || strings.HasSuffix(string(x.PathBytes), "\xff\xfe%&?")
		}
		if !found {
			t.Errorf("listing %v", list.Files)
		}
	})
	t.Run("Directories", func(t *testing.T) { s.directories(t, b) })
	t.Run("Refusals", func(t *testing.T) {
		for _, c := range []struct {
			method, what string
			status       int
			says         string
		}{
			{"GET", "files?path=/tmp/none", 404, "not_found"},
			{"GET", "files?path=/tmp", 412, "is_a_directory"},
			{"GET", "files?path=", 400, "path"},
			{"GET", "files?path=/x&offset=-1", 400, "offset"},
			{"GET", "files?path=/x&mystery=1", 400, "mystery"},
			{"PUT", "files?path=/tmp/none/x", 404, ""},
			{"PUT", "files?path=/tmp/x&mode=99", 400, "mode"},
			{"GET", "files?path=" + url.QueryEscape("/"+strings.Repeat("x", 5000)), 400, "4095"},
			{"GET", "files?path=%zz", 400, "query"},
		} {
			status, answer := b.Do(c.method, c.what, strings.NewReader(""))
			if status != c.status || !strings.Contains(answer, c.says) {
				t.Errorf("%s %.60s: %d %s; want %d %q", c.method, c.what, status, answer, c.status, c.says)
			}
		}
	})
	t.Run("CutUpload", func(t *testing.T) {
		b.Write("/tmp/whole", "old")
		body := &failingReader{data: bytes.Repeat([]byte("x"), 1<<20)}
		req, _ := http.NewRequestWithContext(b.Ctx, "PUT", b.N.URL+"/v1/sandboxes/"+b.ID+"/files?path=/tmp/whole", body)
		req.ContentLength = 2 << 20
		if resp, err := b.N.HTTP.Do(req); err == nil {
			resp.Body.Close()
			t.Errorf("a cut upload was answered with %d", resp.StatusCode)
		}
		if got := b.Read("/tmp/whole"); got != "old" {
			t.Errorf("after a cut upload the file holds %d bytes", len(got))
		}
	})
}

// failingReader is an upload that breaks off.
type failingReader struct{ data []byte }

func (r *failingReader) Read(p []byte) (int, error) {
	if len(r.data) == 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

func (s *suite) directories(t *testing.T, b *Box) {
	f := s.Files
	mk := func(path string, parents bool) error {
		_, err := f.MakeDirectory(b.Ctx, &dsecv1.MakeDirectoryRequest{SandboxId: b.ID, Path: path, Parents: parents})
		return err
	}
	if err := mk("/tmp/d", false); err != nil {
		t.Fatal(err)
	}
	WantCode(t, mk("/tmp/d", false), connect.CodeAlreadyExists)
	WantCode(t, mk("/tmp/none/x", false), connect.CodeNotFound)
	if err := mk("/tmp/d/e/f", true); err != nil {
		t.Fatal(err)
	}
	b.Write("/tmp/d/e/file", "1234")
	list, err := f.ListDirectory(b.Ctx, &dsecv1.ListDirectoryRequest{SandboxId: b.ID, Path: "/tmp/d", Depth: 3})
	if err != nil || len(list.Files) != 3 || list.Truncated {
		t.Errorf("listing %v, %v", list, err)
	}
	var paths []string
	for _, x := range list.GetFiles() {
		paths = append(paths, x.Path)
	}
	slices.Sort(paths)
	if want := []string{"/tmp/d/e", "/tmp/d/e/f", "/tmp/d/e/file"}; !slices.Equal(paths, want) {
		t.Errorf("listed %q, want %q", paths, want)
	}
	list, err = f.ListDirectory(b.Ctx, &dsecv1.ListDirectoryRequest{SandboxId: b.ID, Path: "/tmp/d", Depth: 3, MaxEntries: 1})
	if err != nil || len(list.Files) != 1 || !list.Truncated {
		t.Errorf("bounded listing %v, %v", list, err)
	}
	if _, err := f.MoveFile(b.Ctx, &dsecv1.MoveFileRequest{SandboxId: b.ID, From: "/tmp/d/e", To: "/tmp/d/g"}); err != nil {
		t.Fatal(err)
	}
	if got := b.Read("/tmp/d/g/file"); got != "1234" {
		t.Errorf("moved file holds %q", got)
	}
	rm := func(path string, recursive, force bool) error {
		_, err := f.RemoveFile(b.Ctx, &dsecv1.RemoveFileRequest{SandboxId: b.ID, Path: path, Recursive: recursive, Force: force})
		return err
	}
	WantCode(t, rm("/tmp/d", false, false), connect.CodeFailedPrecondition)
	if err := rm("/tmp/d", true, false); err != nil {
		t.Error(err)
	}
	WantCode(t, rm("/tmp/d", true, false), connect.CodeNotFound)
	if err := rm("/tmp/d", true, true); err != nil {
		t.Error(err)
	}
	_, err = f.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: "/tmp/d"})
	WantCode(t, err, connect.CodeNotFound)
}

// traps: whatever links the sandbox plants, paths stay inside its root, and a user's rights are the user's.
func (s *suite) traps(t *testing.T) {
	s.real(t)
	b := s.Create(t, nil)
	b.Shell("mkdir /tmp/t; ln -s /../../../../etc /tmp/t/up; ln -s /etc/passwd /tmp/t/link; ln -s loop /tmp/t/loop; mkfifo /tmp/t/fifo; chmod 700 /root; echo secret > /root/x")
	t.Run("Up", func(t *testing.T) {
		b.WantShell("echo marked >> /etc/hostname.mark", "")
		if got := b.Read("/tmp/t/up/hostname.mark"); got != "marked\n" {
			t.Errorf("through the link: %q", got)
		}
		if got := b.Read("/../../../../etc/hostname.mark"); got != "marked\n" {
			t.Errorf("above the root: %q", got)
		}
	})
	t.Run("Loop", func(t *testing.T) {
		if status, _ := b.Do("GET", "files?path=/tmp/t/loop", nil); status == 200 {
			t.Error("a loop was read")
		}
	})
	t.Run("NoFollow", func(t *testing.T) {
		st, err := s.Files.StatFile(b.Ctx, &dsecv1.StatFileRequest{SandboxId: b.ID, Path: "/tmp/t/link", NoFollow: true})
		if err != nil || st.File.Type != "symlink" || st.File.SymlinkTarget != "/etc/passwd" {
			t.Errorf("%v, %v", st, err)
		}
	})
	t.Run("Fifo", func(t *testing.T) {
		if status, _ := b.Do("GET", "files?path=/tmp/t/fifo", nil); status == 200 {
			t.Error("a fifo was read")
		}
	})
	t.Run("User", func(t *testing.T) {
		if status, _ := b.Do("GET", "files?path=/root/x&user=nobody", nil); status != 403 {
			t.Errorf("nobody reads root's file: %d", status)
		}
		if status, _ := b.Do("PUT", "files?path=/etc/passwd&user=nobody", strings.NewReader("x")); status != 403 {
			t.Errorf("nobody writes /etc/passwd: %d", status)
		}
	})
}
