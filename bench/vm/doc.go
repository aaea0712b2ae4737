// Command vm measures microVMs through the API, each figure beside a cold boot or a container in the same run: from the
// request to the first command's result, with environments that the node has never seen; a command in a running one; and
// what idle ones cost. Where the node has no KVM the figures are of emulated machines.
package main
