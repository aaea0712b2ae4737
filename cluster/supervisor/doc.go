// Package supervisor keeps the processes of one node running: one per role, started again when they die, with a
// pause that grows while they die young. It is the subreaper of the tree, so that what a role left behind (the
// init processes of sandboxes) stays below it when the role is killed, and is reaped when it ends.
//
// It knows nothing of what the roles do. Its process must not wait for children by other means (os/exec).
package supervisor
