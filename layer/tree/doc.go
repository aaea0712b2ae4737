// Package tree makes a layer out of tars, OCI image layers and directories.
//
// A [Builder] holds the names and attributes of the new tree in memory and writes file contents to the layer's
// data blob as they are read, so that memory grows with the number of files and not with their size. Nothing
// that an input says touches the host's file system: an entry "a" that links to /etc, followed by "a/passwd",
// changes /etc/passwd of the tree.
//
// Lifecycle: New, any number of AddTar, AddDir and NextLayer, then Finish; Close in any case.
//
// The rules of an archive, where tar programs differ: a leading slash is dropped, ".." is refused; parents are
// resolved through symbolic links within the tree; missing parents are made (mode 0755, owner root, time 0;
// /tmp and /var/tmp 1777, /root 0700); the last entry of a name wins; a directory over a directory keeps what
// is below it.
//
// The result is a function of the input: runs of zeros become holes by their content, wherever they came
// from; equal small files are stored once; data that no file refers to any more is removed.
package tree
