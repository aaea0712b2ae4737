// Package aether is the edge's end of the channel to a sandbox's dsec-init: commands, sessions, files and
// ports as Go calls over guest/wire. It keeps no record; the edge does.
package aether
