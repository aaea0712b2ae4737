package machine

import (
	"os"
	"path/filepath"
	"strings"
)

// disks are the devices by their serials. A machine's disks keep both for as long as it lives, in its copies too, and to ask for a
// serial is a request to the disk: with all of them asked for each, that was a third of a claim.
var disks = map[string]string{}

// device finds the disk of a serial.
func device(serial string) (string, error) {
	err := await("disk "+serial, func() bool {
		if disks[serial] == "" {
			findDisks()
		}
		return disks[serial] != ""
	})
	return disks[serial], err
}

// findDisks asks the disks that have not been asked yet.
func findDisks() {
	asked := map[string]bool{}
	for _, dev := range disks {
		asked[dev] = true
	}
	note := func(dir string, serial []byte) {
		if s := strings.TrimSpace(string(serial)); s != "" {
			disks[s] = "/dev/" + filepath.Base(dir)
		}
	}
	files, _ := filepath.Glob("/sys/block/vd*/serial")
	for _, f := range files {
		dir := filepath.Dir(f)
		if asked["/dev/"+filepath.Base(dir)] {
			continue
		}
		if b, err := os.ReadFile(f); err == nil {
			note(dir, b)
		}
	}
	// Behind a controller: a page that begins with its length.
	files, _ = filepath.Glob("/sys/block/sd*/device/vpd_pg80")
	for _, f := range files {
		dir := filepath.Dir(filepath.Dir(f))
		if asked["/dev/"+filepath.Base(dir)] {
			continue
		}
		if b, err := os.ReadFile(f); err == nil && len(b) > 4 {
			note(dir, b[4:])
		}
	}
}
