// Package feature probes what this kernel and machine can do, by trying it. Each feature says since which kernel
// it exists and what is lost without it, so that a host's gaps are typed and visible (`dsec doctor`) instead of
// surprises at run time.
package feature
