package e2b

import (
	"net/http"
	"strings"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
)

// Metadata of a file are its extended attributes user.e2b.NAME, whoever set them: a program inside may too.
const (
	headerMetadata  = "X-Metadata-"
	attributePrefix = "e2b."
	// What clients may give a file: less than our API takes.
	maxFileMetadata   = 32
	maxMetadataName   = 128
	maxMetadataLength = 4 << 10 // names and values together
)

// metadataOfFile reads what an upload gives its files: headers, whose names say nothing of case, with values of printable ASCII.
func metadataOfFile(h http.Header) (map[string]string, error) {
	var out map[string]string
	size := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, headerMetadata)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		switch v := values[0]; {
		case key == "" || len(key) > maxMetadataName:
			return nil, refused(http.StatusBadRequest, "metadata %.40q: want a name of 1 to %d bytes", key, maxMetadataName)
		case len(values) > 1:
			return nil, refused(http.StatusBadRequest, "metadata %s is given %d times: names differ in more than case", key, len(values))
		case strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }):
			return nil, refused(http.StatusBadRequest, "metadata %s: want a value of printable ASCII", key)
		default:
			size += len(key) + len(v)
			if out == nil {
				out = map[string]string{}
			}
			out[key] = v
		}
	}
	if len(out) > maxFileMetadata || size > maxMetadataLength {
		return nil, refused(http.StatusBadRequest, "%d metadata of %d bytes: want at most %d, of %d bytes together", len(out), size, maxFileMetadata, maxMetadataLength)
	}
	return out, nil
}

// metadataIn picks a file's metadata from its attributes; nil = none.
func metadataIn(i *dsecv1.FileInfo) (out map[string]string) {
	for name, v := range i.GetAttributes() {
		if key, ok := strings.CutPrefix(name, attributePrefix); ok && key != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = strings.ToValidUTF8(string(v), "\uFFFD")
		}
	}
	return out
}
