// Command fullvm measures full VMs through the API: a creation from the request to what is on the disk, and, with a disk
// that has an agent, to the first command's result; a picture, a key, a click. Where the node has no KVM the figures are of
// emulated machines.
package main
