// Package fncall holds the tests of function calls on a whole node: through the API and the command line, with processes of
// the platform killed.
package fncall
