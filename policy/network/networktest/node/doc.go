// Package node holds no code: its test puts a node's whole network together (router, datapath, resolver, proxy, with
// one sandbox's namespace and a test internet) and looks at it from inside of the sandbox.
package node
