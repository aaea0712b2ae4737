package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands calls f with every verb that people see.
func commands(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			commands(c, f)
		}
	}
}

// TestHelp: every verb says what it does, and every flag what its value is.
func TestHelp(t *testing.T) {
	commands(newRoot(), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: short help %q", c.CommandPath(), c.Short)
		}
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			switch {
			case usage == "":
				t.Errorf("%s --%s: no help", c.CommandPath(), f.Name)
			case f.Value.Type() == "bool" && value != "":
				t.Errorf("%s --%s: a flag without a value shows %q as one", c.CommandPath(), f.Name, value)
			case strings.HasSuffix(value, "Array") || strings.HasSuffix(value, "Slice"):
				t.Errorf("%s --%s: name its value in back quotes", c.CommandPath(), f.Name)
			}
		})
	})
}

var quoted = regexp.MustCompile(`'[^']*'`)

// TestExamples: what help and README show is what the program takes.
func TestExamples(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{"README.md": string(readme)}
	commands(newRoot(), func(c *cobra.Command) { shown[c.CommandPath()] = c.Example })
	for where, text := range shown {
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, " #")
			line = quoted.ReplaceAllString(line, "quoted")
			line = strings.TrimPrefix(strings.TrimSuffix(strings.TrimSpace(line), ")"), "id=$(")
			for _, part := range strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune("|&;", r) }) {
				words := strings.Fields(part)
				if len(words) < 2 || words[0] != "dsec" {
					continue
				}
				example(t, where+": "+strings.TrimSpace(part), words[1:])
			}
		}
	}
}

func example(t *testing.T, what string, words []string) {
	c, rest, err := newRoot().Find(words)
	if err == nil && !c.Runnable() {
		t.Errorf("%s: not a verb that runs", what)
	}
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil && c.Args != nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}
