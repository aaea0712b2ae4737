// Package cache keeps chunks of layers on the node's disk, by digest, so that layers share what they have in common.
//
//	<dir>/<2 digits>/<62 digits>   one chunk, named by the BLAKE3 of its content
//	<dir>/new/                     what is being written
//
// Nothing in it is believed: a chunk is compared with its name each time that it is read, and one that differs is
// removed. So nothing is synced either, and what a crash of the machine leaves is used again as far as it is good.
// The cache is bounded: above its limit the chunks that were not read for longest go, until a tenth is free again.
// A disk that has no room left makes it smaller, and is not an error.
package cache
