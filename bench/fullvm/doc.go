// Command fullvm measures full VMs through the API: a creation from the request to the first picture, of a disk and of a
// snapshot, and, with a disk that has an agent, of a whole system and to the first command's result; a picture, a key, a click. Where the node has no KVM the figures are of
// emulated machines.
package main
