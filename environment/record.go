package environment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox"
)

// Keys: "name/<kind>/<name>" holds a record, "env/<name>" an environment, "step/<key>" what a step of a build made, "digest/<kind>/<digest>" and "source/<source>" hold the names that
// may have a version with that digest or (bases) source. The latter are written first and may name too much; what
// they say is checked against the record.

// record is all that is known of one name.
type record struct {
	Last     int64            // the highest version ever given
	Versions []*dsecv1.Layer  // ascending
	Tags     map[string]int64 // to versions that are there
}

type recordJSON struct {
	Last     int64             `json:"last"`
	Versions []json.RawMessage `json:"versions"`
	Tags     map[string]int64  `json:"tags,omitempty"`
}

// maxRecord bounds one name's record, bytes; etcd takes 1.5 MiB.
const maxRecord = 1 << 20

// maxSwaps bounds the attempts at one change. Each failed one is somebody else's success.
const maxSwaps = 1000

func (r *record) encode() ([]byte, error) {
	j := recordJSON{Last: r.Last, Versions: []json.RawMessage{}, Tags: r.Tags}
	for _, l := range r.Versions {
		b, err := protojson.Marshal(l)
		if err != nil {
			return nil, err
		}
		j.Versions = append(j.Versions, b)
	}
	return json.Marshal(j)
}

func decodeRecord(e Entry) (*record, error) {
	r := &record{}
	if e.Revision == 0 {
		return r, nil
	}
	var j recordJSON
	err := json.Unmarshal(e.Value, &j)
	for _, b := range j.Versions {
		l := &dsecv1.Layer{}
		if err == nil {
			err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, l)
		}
		r.Versions = append(r.Versions, l)
	}
	if err != nil {
		return nil, fmt.Errorf("catalogue entry %s: %w: %w", e.Key, sandbox.ErrUnavailable, err)
	}
	r.Last, r.Tags = j.Last, j.Tags
	return r, nil
}

// newest returns the latest version that fits, or nil.
func (r *record) newest(fits func(*dsecv1.Layer) bool) *dsecv1.Layer {
	for _, l := range slices.Backward(r.Versions) {
		if fits(l) {
			return l
		}
	}
	return nil
}

func formatVersion(n int64) string { return "v" + strconv.FormatInt(n, 10) }

// parseVersion accepts v1, v2, ...
func parseVersion(s string) (int64, error) {
	digits, ok := strings.CutPrefix(s, "v")
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 1 || formatVersion(n) != s {
		return 0, fmt.Errorf("version %.40q: %w: want v and a number, as in v1", s, sandbox.ErrInvalid)
	}
	return n, nil
}

func nameKey(k dsecv1.LayerKind, name string) string { return "name/" + kindWord(k) + "/" + name }
func digestKey(k dsecv1.LayerKind, digest string) string {
	return "digest/" + kindWord(k) + "/" + digest
}
func sourceKey(source string) string { return "source/" + source }

// kinds in the order in which they are listed and stacked.
var kinds = []dsecv1.LayerKind{dsecv1.LayerKind_LAYER_KIND_BASE, dsecv1.LayerKind_LAYER_KIND_WORKSPACE, dsecv1.LayerKind_LAYER_KIND_TOOLKIT}

func kindWord(k dsecv1.LayerKind) string {
	switch k {
	case dsecv1.LayerKind_LAYER_KIND_WORKSPACE:
		return "workspace"
	case dsecv1.LayerKind_LAYER_KIND_TOOLKIT:
		return "toolkit"
	}
	return "base"
}

// checkKind gives the unspecified kind its meaning.
func checkKind(k dsecv1.LayerKind) (dsecv1.LayerKind, error) {
	if k == dsecv1.LayerKind_LAYER_KIND_UNSPECIFIED {
		return dsecv1.LayerKind_LAYER_KIND_BASE, nil
	}
	if !slices.Contains(kinds, k) {
		return 0, fmt.Errorf("layer kind %d: %w: want base, workspace or toolkit", k, sandbox.ErrInvalid)
	}
	return k, nil
}

// change reads a key, lets edit make the new value (nil = delete; same = leave), and swaps it in, again if somebody was faster.
func change(ctx context.Context, kv KV, key string, edit func(Entry) (value []byte, same bool, err error)) error {
	for range maxSwaps {
		entries, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		e := entries[0]
		value, same, err := edit(e)
		switch {
		case err != nil || same:
			return err
		case value != nil:
			err = kv.Put(ctx, key, value, e.Revision)
		case e.Revision != 0:
			err = kv.Delete(ctx, key, e.Revision)
		}
		if !errors.Is(err, sandbox.ErrConflict) {
			return err
		}
	}
	return fmt.Errorf("change %s: %w: too many writers at once; try again", key, sandbox.ErrUnavailable)
}

// index adds a name to, or removes it from, the list of names at key.
func index(ctx context.Context, kv KV, key, name string, present bool) error {
	return change(ctx, kv, key, func(e Entry) ([]byte, bool, error) {
		names, err := decodeIndex(e)
		if err != nil {
			return nil, false, err
		}
		at, have := slices.BinarySearch(names, name)
		switch {
		case have == present:
			return nil, true, nil
		case present:
			names = slices.Insert(names, at, name)
		default:
			names = slices.Delete(names, at, at+1)
		}
		if len(names) == 0 {
			return nil, false, nil
		}
		b, err := json.Marshal(names)
		return b, false, err
	})
}

func decodeIndex(e Entry) ([]string, error) {
	if e.Revision == 0 {
		return nil, nil
	}
	var names []string
	if err := json.Unmarshal(e.Value, &names); err != nil {
		return nil, fmt.Errorf("catalogue entry %s: %w: %w", e.Key, sandbox.ErrUnavailable, err)
	}
	return names, nil
}
