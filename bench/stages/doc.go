// Command stages measures what each part of a sandbox's life costs at the driver's level, without API and edge:
// preparing a shell, taking one, composing its root, setting limits, claiming it, its first and second command, and
// destroying it. One sandbox lives at a time; the pool is refilled beside it.
package main
