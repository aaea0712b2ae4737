// Package netrules keeps the network policies that are not a sandbox's own: ceilings of projects, which bound what their
// sandboxes may reach, and defaults beside names of the catalogue, which sandboxes made of such a layer are under.
//
// They lie in the engine below /dsec/network/, as JSON of dsec.v1.NetworkPolicy: projects/NAME, and defaults/KIND/NAME or
// defaults/KIND/NAME@VERSION (of named environments defaults/environment/NAME). A Store has all of them in memory and follows the engine, so that a creation asks nobody. What
// one says it cannot judge: services are a node's (EdgeService.CheckNetwork).
package netrules
