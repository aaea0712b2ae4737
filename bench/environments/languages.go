package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	dsecv1 "github.com/opendsec/dsec/api/dsec/v1"
	"github.com/opendsec/dsec/bench/measure"
	"github.com/opendsec/dsec/client"
	"github.com/opendsec/dsec/internal/testkit"
)

func init() { parts = append(parts, part{"languages", languages}) }

// tasks are small programs, each of which builds or runs something real, by language.
var languageTasks = []struct{ name, script string }{
	{"c", `printf '#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("HOME")); }\n' > a.c && gcc -O1 -o a a.c && ./a`},
	{"cpp", `printf '#include <iostream>\n#include <map>\n#include <string>\nint main() { std::map<std::string, int> m; m["a"] = 1; std::cout << m.size(); }\n' > a.cc && g++ -O1 -o a a.cc && ./a`},
	{"javascript", `node -e 'const fs = require("fs"), c = require("crypto"); console.log(c.createHash("sha256").update(fs.readFileSync("/etc/passwd")).digest("hex"))'`},
	{"python", `python3 -c 'import json, re, sqlite3, unittest, urllib.request; print(len(json.dumps(list(range(1000)))))'`},
	{"shell", `ls -lR /etc | sort | uniq -c | awk '{ n += $1 } END { print n }'`},
}

// languages measures which share of an image a task reads: one image with several languages, a node that knows nothing of it for each.
func languages(ctx context.Context, b *bench) (err error) {
	tree, err := testkit.DebianTree(ctx, testkit.CallPackages...)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp(b.work, "languages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	state := filepath.Join(work, "node")
	node, err := testkit.StartNode(ctx, b.dsec, state, "--opt", "lazy=on", "--opt", "network=off", "--opt", "pool=1g", "--opt", "warm=2")
	if err != nil {
		return err
	}
	defer func() {
		_, serr := node.Stop()
		err = errors.Join(err, serr)
	}()
	f, err := os.Open(tree)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := node.Client.UploadLayer(ctx, client.Upload{Kind: "base", Name: "languages"}, f, nil); err != nil {
		return err
	}
	for _, task := range languageTasks {
		if _, err := node.Stop(); err != nil {
			return err
		}
		if err := os.RemoveAll(filepath.Join(state, "lazy")); err != nil {
			return err
		}
		if node, err = testkit.StartNode(ctx, b.dsec, state, "--opt", "lazy=on", "--opt", "network=off", "--opt", "pool=1g", "--opt", "warm=2"); err != nil {
			return err
		}
		made, err := node.Client.Create(ctx, &dsecv1.CreateSandboxRequest{Spec: &dsecv1.SandboxSpec{Environment: &dsecv1.Environment{Base: "languages"}}})
		if err != nil {
			return err
		}
		if err := shell(ctx, node, made[0].GetId(), "cd /tmp && "+task.script); err != nil {
			return fmt.Errorf("%s: %w", task.name, err)
		}
		data, read, chunks, err := traces(ctx, filepath.Join(state, "run", "blobd.sock"))
		if err != nil {
			return err
		}
		row := measure.FromValues("share_read_"+task.name, "%", []float64{100 * float64(read) / float64(data)}, 0)
		row.Note = fmt.Sprintf("of an image of %d MiB, the kernel's readahead included; in chunks %.1f %%; the paper: 4.2 to 13.3 %%, by language", data>>20, 100*float64(chunks)/float64(data))
		b.add(row)
		if err := stopAll(ctx, node, made); err != nil {
			return err
		}
	}
	return nil
}
