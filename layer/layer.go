package layer

import (
	"context"
	"io"
)

// Digest names a layer by its content: "b3:" and the 64 hexadecimal digits of the BLAKE3 hash of its
// canonical manifest.
type Digest string

// Manifest is the canonical description of a layer; its encoding is what the digest covers.
type Manifest struct {
	Version int    `json:"version"`
	Meta    Blob   `json:"meta"`   // EROFS image: superblock, inodes, names, xattrs; no file data
	Data    Blob   `json:"data"`   // file data, at block-aligned offsets, as EROFS device 1; may be empty
	Files   int64  `json:"files"`  // names in the tree, directories included
	Config  Config `json:"config"` // what the image says about running it
}

// Blob is one of a layer's two parts: size in bytes and the BLAKE3 digests of its chunks.
type Blob struct {
	Size      int64    `json:"size"`
	ChunkSize int64    `json:"chunkSize"`
	Chunks    []string `json:"chunks"` // hex, one per chunk
}

// Config is the part of an OCI image configuration that applies at run.
type Config struct {
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"`
	Workdir    string   `json:"workdir,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	Disk       *Disk    `json:"disk,omitempty"` // the layer is a disk of a full virtual machine
}

// Disk says of a layer that its one file, disk.raw, is a disk.
type Disk struct {
	Size     int64  `json:"size"`            // bytes, as a machine sees it
	Firmware string `json:"firmware"`        // bios or uefi
	Agent    bool   `json:"agent,omitempty"` // its system starts an agent
}

// Local is a layer on this node, complete and verified: what a Backend mounts (EROFS from MetaPath with
// device=DataPath when Data.Size > 0).
type Local struct {
	Digest   Digest
	Manifest Manifest
	MetaPath string
	DataPath string
	// Readahead is how far ahead the kernel should read the data, bytes, where that comes on demand; 0 = as it likes.
	Readahead int
}

// Store keeps published layers. Layers are immutable; publishing the same one twice is harmless.
type Store interface {
	// Get returns a manifest. Error: sandbox.ErrNotFound.
	Get(ctx context.Context, d Digest) (*Manifest, error)
	// OpenMeta and OpenData read the parts from their beginning.
	OpenMeta(ctx context.Context, d Digest) (io.ReadCloser, error)
	OpenData(ctx context.Context, d Digest) (io.ReadCloser, error)
	// ReadData fills p with the data from byte off on; nothing is verified. Errors: sandbox.ErrNotFound;
	// ErrDamaged with sandbox.ErrUnavailable where the data ends before; sandbox.ErrUnavailable.
	ReadData(ctx context.Context, d Digest, p []byte, off int64) error
	// Put publishes atomically: after it returns the whole layer is there, before nothing is.
	Put(ctx context.Context, m *Manifest, meta, data io.Reader) (Digest, error)
	List(ctx context.Context) ([]Digest, error)
	// Delete removes a layer; mounts of it go on. Error: sandbox.ErrNotFound.
	Delete(ctx context.Context, d Digest) error
}

// FileStore is what a Store on a local file system offers besides: files made in its staging are published by
// moving them.
type FileStore interface {
	Store
	Verifier
	// Stage makes an empty directory on the store's file system. What is left in it goes when it is closed, or
	// when a later process opens the store.
	Stage(ctx context.Context) (Stage, error)
	// PutFiles publishes as Put does. The files are consumed (moved where they lie in a Stage, else copied);
	// dataPath is empty when the layer has no data. Their content is compared with the manifest. So is that of the same
	// layer if it is there already: where it is damaged the files take its place.
	PutFiles(ctx context.Context, m *Manifest, metaPath, dataPath string) (Digest, error)
}

// Stage is a private directory of a FileStore.
type Stage interface {
	Dir() string
	Close() error
}

// Verifier is a Store or Node that can check what it holds.
type Verifier interface {
	// Verify reads a whole layer and compares it with its digest. Errors: sandbox.ErrNotFound; ErrDamaged, which
	// says which part, and which chunks of it.
	Verify(ctx context.Context, d Digest) error
}

// Prober is a Store whose calls may hang with the file system that it lies on.
type Prober interface {
	// Probe asks for a sign of life; it hangs where the store does.
	Probe() error
}

// Node gives layers to a Backend as local files.
type Node interface {
	// Local returns a complete, verified layer; it fetches what is missing. Errors: sandbox.ErrNotFound,
	// sandbox.ErrUnavailable.
	Local(ctx context.Context, d Digest) (*Local, error)
}
