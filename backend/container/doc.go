// Package container is the container backend: our own small runtime, made for creating.
//
// # Warm shells
//
// What costs time in a container is its process, its namespaces and its control groups, not its image. So the
// driver keeps image-agnostic shells: a dsec-init already cloned into all its namespaces with an id range of
// its own, its groups made, a writable layer prepared, its channel open. Creating a sandbox takes one shell and
// gives it an environment: an overlay of the layers (mounted once per node, seen through the shell's id
// mapping) and its writable layer, handed over as a detached mount; limits; ready.
//
// # Owners
//
// Every part is named by the sandbox's id, and the id is recorded in <state>/run/shells/<id> before anything is
// made: Sweep, in a later process, finds and removes it all after a crash at any step.
//
//	<state>/run/shells/<id>/        record.json, the channel's socket
//	<groups>/<id>/                  control groups (package cgroup)
//	pool subvolume <id>             writable layer (package pool)
//	the process and its namespaces  end with dsec-init
//
// The driver keeps no record of what a sandbox does; the edge does.
package container
