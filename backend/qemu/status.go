package qemu

import "context"

// Status is QEMU's word for what a machine does.
func Status(ctx context.Context, m Monitor) (string, error) {
	var s struct {
		Status string `json:"status"`
	}
	err := m.Do(ctx, "query-status", nil, &s)
	return s.Status, err
}

// Over tells whether a machine of this status has ended.
func Over(status string) bool {
	switch status {
	case "shutdown", "guest-panicked", "internal-error", "io-error":
		return true
	}
	return false
}

// StandsStill tells whether a machine of this status waits to be let go on.
func StandsStill(status string) bool { return status == "paused" || status == "postmigrate" }
