package supervisor

import (
	"fmt"
	"os"
)

// maxLog is the size at which a role's log becomes NAME.log.1 when the role starts.
const maxLog = 16 << 20

func openLog(path string) (*os.File, error) {
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, fmt.Errorf("rotate log: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// Tail returns the last lines of a log, at most max bytes.
func Tail(path string, max int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > max {
		_, _ = f.Seek(-max, 2)
	}
	b := make([]byte, max)
	n, _ := f.Read(b)
	return string(b[:n])
}
