package e2b

import (
	"strconv"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// What clients of this door say of a sandbox is kept in its labels. Forks inherit it.
const (
	labelTemplate = "e2b.template"  // what it was made of, as the client called it; every sandbox of this door has it
	labelTimeout  = "e2b.timeout"   // seconds
	labelPrivate  = "e2b.private"   // "true": ports need the traffic token
	labelInternet = "e2b.internet"  // "true" or "false"
	labelName     = "e2b.name"      // of a snapshot
	metaPrefix    = "e2b.metadata." // + key
	maxLabels     = 64 - 6          // as many metadata as fit
	maxLabel      = 256 - len(metaPrefix)
)

func metadataLabels(m map[string]string, to map[string]string) error {
	if len(m) > maxLabels {
		return unsupported("%d metadata entries are more than %d", len(m), maxLabels)
	}
	for k, v := range m {
		if k == "" || len(k) > maxLabel || len(v) > 256 {
			return unsupported("metadata %.64q: want a name of 1 to %d bytes and a value of at most 256", k, maxLabel)
		}
		to[metaPrefix+k] = v
	}
	return nil
}

func metadataOf(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if name, ok := strings.CutPrefix(k, metaPrefix); ok {
			out[name] = v
		}
	}
	return out
}

// timeoutOf is the timeout that a sandbox was created with, seconds.
func timeoutOf(b *dsecv1.Sandbox) float64 {
	if n, err := strconv.ParseFloat(b.GetSpec().GetLabels()[labelTimeout], 64); err == nil && n > 0 {
		return n
	}
	return defaultTimeout
}
