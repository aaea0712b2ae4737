// Package testkit starts real nodes for tests, benchmarks and the demo, and finds what they leave behind.
package testkit
