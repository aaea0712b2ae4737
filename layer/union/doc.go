// Package union says what a stack of layers shows, from their metadata alone: the tree that an overlay of them makes
// ([Show]), which layer hides what of which other ([Show]'s Hidden), and in what two such trees differ ([Diff]).
package union
