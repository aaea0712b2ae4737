package edge_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/sandbox/sandboxtest"
)

// TestSecretsAreNotKept: a secret's value is in no listing, no event and no file of the edge, whether it was given to the
// sandbox, to a command, or as stdin; its name is told. The same search finds a plain variable.
func TestSecretsAreNotKept(t *testing.T) {
	const secret, plain = "hush-hush-1234567", "plain-words-7654321"
	n := sandboxtest.Start(t, fakeFactory(), nil)
	b := n.Create(t, &dsecv1.SandboxSpec{Secrets: map[string]string{"ONE": secret}, Env: map[string]string{"TWO": plain}})
	b.Exec(&dsecv1.CommandSpec{Shell: "true", Secrets: map[string]string{"THREE": secret}, Stdin: []byte(secret)})
	if _, err := n.Commands.CreateSession(b.Ctx, &dsecv1.CreateSessionRequest{SandboxId: b.ID}); err != nil {
		t.Fatal(err)
	}
	var seen bytes.Buffer
	note := func(m proto.Message, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		text, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		seen.Write(text)
	}
	read := func() {
		boxes, err := n.Sandboxes.ListSandboxes(b.Ctx, &dsecv1.ListSandboxesRequest{})
		note(boxes, err)
		commands, err := n.Commands.ListCommands(b.Ctx, &dsecv1.ListCommandsRequest{SandboxId: b.ID})
		note(commands, err)
		sessions, err := n.Commands.ListSessions(b.Ctx, &dsecv1.ListSessionsRequest{SandboxId: b.ID})
		note(sessions, err)
		for _, ev := range b.Events(0) {
			note(ev, nil)
		}
		if names := b.Get().SecretNames; len(names) != 1 || names[0] != "ONE" {
			t.Errorf("names %v", names)
		}
	}
	read()
	n.Restart()
	read()
	err := filepath.WalkDir(filepath.Join(n.State, "edge"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		seen.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(seen.Bytes(), []byte(secret)) {
		t.Error("the secret is kept or shown")
	}
	if bytes.Count(seen.Bytes(), []byte(plain)) < 3 { // two listings and the record
		t.Error("the search finds nothing")
	}
}
