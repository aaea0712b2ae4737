// Package fake is a Backend whose machines live in this process: a driver for tests and for experiments with
// more sandboxes than a node could hold. Each machine answers on the real channel (guest/wire) through a real
// aether.Conn, so that everything above the driver runs as it does with containers.
//
// What runs in it is a toy: a shell that knows a few programs (see shell.go), and files in memory. A Backend
// is also the world its machines live in: an edge that is closed, or abandoned as kill -9 does, leaves them
// running, and the next edge over the same Backend recovers them.
package fake
