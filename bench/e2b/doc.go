// Command e2b measures the door for E2B clients beside our own API, on the same node and in turn: creation, a command,
// a file of 1 MB read and written; and lets many clients of the real package live at once.
package main
