package container

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opendsec/dsec/sandbox"
)

// wordsName is the file in a shell's directory that is its dsec-init's standard error. It outlives the edge, and takes
// no process or thread to read.
const wordsName = "words"

// maxWords bounds what is read of it at each end: what begins a crash of the Go runtime, and what dsec-init says last.
const maxWords = 1000

func (d *Driver) makeWords(id sandbox.ID) (*os.File, error) {
	return os.OpenFile(filepath.Join(d.shellDir(id), wordsName), os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o600)
}

// lastWords returns what the shell's or sandbox's dsec-init has said, in one line; empty when that is nothing.
func (d *Driver) lastWords(id sandbox.ID) string {
	f, err := os.Open(filepath.Join(d.shellDir(id), wordsName))
	if err != nil {
		return ""
	}
	defer f.Close()
	head := make([]byte, 2*maxWords)
	n, _ := io.ReadFull(f, head) // what cannot be read was not said
	said := string(head[:n])
	if st, err := f.Stat(); err == nil && st.Size() > 2*maxWords {
		tail := make([]byte, maxWords)
		n, _ := f.ReadAt(tail, st.Size()-maxWords)
		said = string(head[:maxWords]) + " [...] " + string(tail[:n])
	}
	return strings.Join(strings.Fields(said), " ")
}

// withWords adds to an error what dsec-init has said.
func (d *Driver) withWords(id sandbox.ID, err error) error {
	if said := d.lastWords(id); said != "" {
		return fmt.Errorf("%w; its last words: %s", err, said)
	}
	return err
}
