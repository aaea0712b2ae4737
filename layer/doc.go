// Package layer holds what environments are made of. A layer is an immutable tree of files, kept as two
// parts: an EROFS metadata image and a data blob (docs/formats/layer.md), named together by a digest.
package layer
