// Package environment is the catalogue of what sandboxes are composed of: bases, workspaces and toolkits, each
// kind with its own names, each name with its own versions, each version a layer.
//
// Versions are counted per kind and name (v1, v2, ...) and never used twice, also when versions are deleted.
// Publishing what a name holds already gives the version that holds it. An environment names a
// base, at most one workspace and any number of toolkits; [Catalogue.Resolve] turns it into layers, bottom to
// top, and merges what their images say about running them.
//
// The catalogue lies in a [KV]: etcd, or memory for tests. Every name is one key, changed by compare and swap,
// so that any number of publishers agree. Layers themselves lie in a layer.Store; the catalogue holds no
// content, and tells what no name is left for ([Catalogue.Collect]).
package environment
