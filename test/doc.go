// Package test holds the tests of whole nodes: the binaries as they are shipped, the container driver, a real
// base. What one package can show by itself is tested beside its code.
package test
