package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// wantJSON tells whether --json was given.
func wantJSON(cmd *cobra.Command) bool {
	v, _ := cmd.Flags().GetBool(asJSON)
	return v
}

// printProto prints a message as indented JSON. Fields without a value are printed too, so that shapes are stable.
func printProto(w io.Writer, m proto.Message) error {
	b, err := protoJSON(m)
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	if err := json.Indent(&buf, b, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, buf.String())
	return err
}

// printProtoLine prints a message as one line of JSON.
func printProtoLine(w io.Writer, m proto.Message) error {
	b, err := protoJSON(m)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// protoJSON is compact and always spaced the same (protojson varies its spaces on purpose).
func protoJSON(m proto.Message) ([]byte, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	if err := json.Compact(&buf, b); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// table prints rows in aligned columns.
func table(w io.Writer, header string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ReplaceAll(header, " ", "\t"))
	for _, r := range rows {
		for i := range r {
			r[i] = printable(r[i])
		}
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	return t.Flush()
}

// printable keeps what sandboxes say from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return '?'
		}
		return r
	}, s)
}

// bytesText is a size for people.
func bytesText(n int64) string {
	const units = "KMGTP"
	if n < 1024 {
		return fmt.Sprintf("%dB", n)
	}
	f, i := float64(n)/1024, 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	return fmt.Sprintf("%.1f%ciB", f, units[i])
}

// ageText is the time since t for people.
func ageText(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return durationText(time.Since(t.AsTime()))
}

func durationText(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// shortDigest is a digest for tables; --json has all of it.
func shortDigest(d string) string {
	algorithm, hex, ok := strings.Cut(d, ":")
	if !ok || len(hex) <= 12 {
		return d
	}
	return algorithm + ":" + hex[:12]
}

// enumText turns SANDBOX_STATE_RUNNING into running.
func enumText(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }
