package e2b

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

// TestUploadAgain: of two requests that send the same archive the later one counts, and the earlier is ended: what is announced once
// is never on disk many times.
func TestUploadAgain(t *testing.T) {
	r := newRig(t)
	files := "/templates/x/files/" + strings.Repeat("a", 64)
	_, got := r.do(t, "GET", files, control(), "")
	to := strings.TrimPrefix(fmt.Sprint(field(t, got, "url")), r.URL)
	body, feed := io.Pipe()
	defer feed.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, r.URL+to, body)
	if err != nil {
		t.Fatal(err)
	}
	first := make(chan string, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			first <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		first <- fmt.Sprint(resp.StatusCode, " ", string(b))
	}()
	if _, err := io.WriteString(feed, "half"); err != nil { // it is being sent
		t.Fatal(err)
	}
	d := r.Config.Handler.(*Door)
	for one := d.uploads.find(strings.TrimPrefix(to, uploadPath)); ; {
		d.uploads.mu.Lock()
		begun := one.taking != nil
		d.uploads.mu.Unlock()
		if begun {
			break
		}
	}
	if status, got := r.do(t, "PUT", to, nil, "whole"); status != 200 {
		t.Fatalf("the second: %d %s", status, got)
	}
	if got := <-first; !strings.HasPrefix(got, "409 ") {
		t.Errorf("the first: %s", got)
	}
	if _, got := r.do(t, "GET", files, control(), ""); field(t, got, "present") != true {
		t.Errorf("afterwards: %s", got)
	}
	if left, err := os.ReadDir(d.uploads.dir); err != nil || len(left) != 2 {
		t.Errorf("on disk: %v, %v", left, err)
	}
}
