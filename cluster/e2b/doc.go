// Package e2b is a second door to the API: clients of the E2B packages (npm `e2b`, PyPI `e2b`) work through it as they are.
//
// It is a translation and keeps nothing: what such a client says of a sandbox beyond our own spec is in the sandbox's
// labels (labels.go), tokens are derived (iam.SandboxToken), pages and process ids are ours. Two faces share one listener:
//
//   - control: sandboxes, snapshots, templates, as JSON over HTTP, with an API key (control.go);
//   - data: programs (process.go), files (filesystem.go, files.go) and ports (ports.go) of one sandbox, with the sandbox's
//     own token. A request is of this face when its host is PORT-ID.DOMAIN or it names a sandbox in a header (route.go).
//
// Nothing of it runs in a sandbox: port 49983, where those clients expect a daemon, is answered here.
//
// What cannot be done is refused with a status of 4xx and a sentence; docs/e2b.md lists it.
package e2b
