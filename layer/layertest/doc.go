// Package layertest holds what tests of layers share: mounting an image with the kernel, describing a tree so
// that two can be compared, a conformance suite for stores, and random trees.
package layertest
