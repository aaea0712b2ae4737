package network

// Member is the program of a sandbox that is in a private network as well: its members reach each other whatever their
// programs say, and know each other by name. All of them are on one node.
type Member struct {
	*Program
	Network string // names it on the node
	Name    string // of this member; several may have the same
}

// Digest tells members apart, too.
func (m *Member) Digest() string { return m.Program.Digest() + " " + m.Network + " " + m.Name }
